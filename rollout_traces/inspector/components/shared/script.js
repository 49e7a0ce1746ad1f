// A page that was saved as one file: what it holds is shown by the inspector's own pages, and nothing is asked for.

import { h, notice, replace, select } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { catalog, register, setPopulation } from "../../lib/pages.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { mount as mountCompare } from "../compare/script.js";
import { mount as mountGroup } from "../group/script.js";
import { Labels } from "../labels/script.js";
import { rolloutHeader } from "../rollout_header/script.js";
import { mount as mountRun } from "../run/script.js";
import { LOOK_KEYS, lookOf, lookPatch, readingKeys } from "../transcript/keys.js";
import { TranscriptView } from "../transcript/script.js";
import { drawFrame } from "./frame.js";

const held = JSON.parse(document.getElementById("rt-held").textContent);
if (held.compare) held.compare.sides = held.rollouts;
const NOT_HERE = "It is not in this file.";

const frames = {
  rollouts: () => h("main.rt-middle.rt-shared-middle.rt-scroll", { tabindex: "-1" }),
  compare: () => h("div.rt-compare.rt-scroll", { tabindex: "-1" }),
  group: () => h("div.rt-workbench.rt-scroll#group-page", { tabindex: "-1" }),
  run: () =>
    h("div.rt-run#run-page", h("div.rt-run-main.rt-scroll", { tabindex: "-1" }), h("aside.rt-run-side.rt-scroll")),
};
const mounts = {
  rollouts: mountRollouts,
  compare: element => mountCompare(element, server),
  group: element => mountGroup(element, server),
  run: element => mountRun(element, server),
};
const titles = { run: "Run", rollouts: "Rollouts", compare: "Compare", group: "Group" };
const pages = Object.keys(titles).filter(name => (name === "rollouts" ? held.rollouts.length : held[name]));

// The answers that were recorded, in the place of the server's.
const answer = value => ({ ok: value });
const refuse = message => ({ error: { message, kind: "StoreError" } });
const server = {
  compare: async asked => compared(asked),
  group: async asked => (Number(asked.group) === held.group?.group ? answer(held.group) : refuse(NOT_HERE)),
  population: async () => (held.population ? answer(held.population) : refuse(NOT_HERE)),
  prompt_history: async () => answer({ steps: [] }),
  run_curves: async () => answer(held.run),
  run_report: async () => answer(held.run),
  explain: async asked =>
    held.explanation && asked.step === held.explanation.steps[0]
      ? answer(held.explanation)
      : refuse(`What changed at step ${asked.step} is not in this file.`),
};

function compared({ a, b }) {
  const [left, right] = held.compare.sides.map(side => side.id);
  if ((!a || a === left) && (!b || b === right)) return answer(held.compare);
  if (a !== right || b !== left) return refuse(NOT_HERE);
  const deltas = held.compare.deltas.map(row => ({
    ...row,
    a: row.b,
    b: row.a,
    delta: row.delta === null ? null : -row.delta,
  }));
  return answer({ ...held.compare, sides: [...held.compare.sides].reverse(), deltas });
}

function found(now) {
  if (now.id !== undefined) return held.rollouts.find(rollout => rollout.id === now.id);
  if (now.sample === undefined) return held.rollouts[0];
  return held.rollouts.find(({ metadata: m }) =>
    ["step", "group", "sample"].every(key => now[key] === undefined || String(m[key]) === now[key]),
  );
}

function mountRollouts(root) {
  const middle = root.querySelector(".rt-middle");
  let view = null;
  let shownFor;
  const change = patch => state.set(lookPatch(patch), { fill: "token" in patch });
  readingKeys("rollouts", { scroller: () => middle, view: () => view, change });
  const around = async (what, { metadata: m }) => {
    const known = held.around[`${what} ${m.step} ${m.group}`];
    if (!known) throw new Error("What is around the rollout is not in this file.");
    return known;
  };
  const show = (rollout, now) => {
    view?.forget();
    view = new TranscriptView(
      rollout,
      { scroller: middle, onChange: change, around: what => around(what, rollout) },
      lookOf(now),
    );
    replace(
      middle,
      rolloutHeader(rollout, { labels: new Labels(rollout, null).root, showFlag: flag => view.showFlag(flag) }),
      view.root,
    );
    middle.scrollTop = 0;
    if (now.token !== undefined) view.goTo(Number(now.token));
    performance.mark("rt-rollout-shown");
  };
  register("rollouts", {
    element: root,
    update(now, changed) {
      const rollout = found(now);
      setPopulation("rollouts", h("b", held.said));
      if (!rollout) {
        shownFor = undefined;
        view = null;
        replace(middle, notice("info", "This rollout cannot be shown", NOT_HERE));
        return;
      }
      if (rollout !== shownFor) {
        shownFor = rollout;
        show(rollout, now);
        return;
      }
      if (LOOK_KEYS.some(key => changed.has(key))) view.setLook(lookOf(now));
      if (changed.has("token") && now.token !== undefined) view.goTo(Number(now.token));
    },
  });
}

function picker() {
  if (held.rollouts.length < 2) return null;
  const name = ({ metadata: m }) =>
    `step ${number(m.step)} · g${number(m.group)} #${number(m.sample)} · reward ${number(m.reward)}`;
  const reads = state.get().page === "rollouts";
  return select(
    [
      ...(reads ? [] : [["", `${held.rollouts.length} rollouts`]]),
      ...held.rollouts.map(rollout => [rollout.id, name(rollout)]),
    ],
    reads ? found(state.get())?.id : "",
    id => state.set({ page: "rollouts", id, step: null, group: null, sample: null, token: null }),
    { "aria-label": "Rollout", testid: "shared-pick" },
  );
}

Object.assign(catalog, {
  projects: [{ name: held.place.project }],
  project: held.place.project,
  runs: [
    {
      name: held.place.run,
      label: held.place.run,
      splits: [{ name: held.place.split, steps: held.steps, n_traced: held.rollouts.length, n_rows: null }],
    },
  ],
});
const refresh = drawFrame({
  pages: pages.map(name => ({ name, title: titles[name] })),
  bar: () => [h("b.rt-ellipsis", inert(held.title)), picker()],
  made: held.made,
  missing: NOT_HERE,
});
for (const name of pages) {
  const element = h("div.rt-view.rt-page", frames[name]());
  document.body.append(element);
  mounts[name](element);
}
state.set({ ...held.place, ...held.start }, { fill: true });
state.subscribe((now, changed) => refresh(changed));
refresh(new Set(state.KEYS));
