// A page that was saved as one file: what it holds is shown by the inspector's own pages, and nothing is asked for.

import { button, h, notice, replace } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { listenToKeys, showHelp, toggleTheme } from "../../lib/frame.js";
import { catalog, onPopulation, register, setPopulation, showPopulationOf, whenReady } from "../../lib/pages.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { mount as mountCompare } from "../compare/script.js";
import { mount as mountGroup } from "../group/script.js";
import { Labels } from "../labels/script.js";
import { rolloutHeader } from "../rollout_header/script.js";
import { mount as mountRun } from "../run/script.js";
import { LOOK_KEYS, lookOf, lookPatch, readingKeys } from "../transcript/keys.js";
import { TranscriptView } from "../transcript/script.js";

const held = JSON.parse(document.getElementById("rt-held").textContent);
if (held.compare) held.compare.sides = held.rollouts;
const NOT_HERE = "It is not in this file.";

const frames = {
  rollouts: () => h("main", { class: "rt-middle rt-shared-middle rt-scroll", tabindex: "-1" }),
  compare: () => h("div", { class: "rt-compare rt-scroll", tabindex: "-1" }),
  group: () => h("div", { class: "rt-workbench rt-scroll", testid: "group-page", tabindex: "-1" }),
  run: () =>
    h(
      "div",
      { class: "rt-run", testid: "run-page" },
      h("div", { class: "rt-run-main rt-scroll", tabindex: "-1" }),
      h("aside", { class: "rt-run-side rt-scroll" }),
    ),
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
  figures: async () => refuse("Figures are computed again where the run is, not in this file."),
  diagnosis_figures: async () => refuse("Figures are computed again where the run is, not in this file."),
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
    [
      ["step", m.step],
      ["group", m.group],
      ["sample", m.sample],
    ].every(([key, value]) => now[key] === undefined || String(value) === now[key]),
  );
}

function mountRollouts(root) {
  const middle = root.querySelector(".rt-middle");
  let view = null;
  let shownFor;
  const change = patch => state.set(lookPatch(patch), { fill: "token" in patch });
  readingKeys(
    "rollouts",
    () => middle,
    () => view,
    change,
  );
  const around = (what, { metadata: m }) => {
    const known = held.around[`${what} ${m.step} ${m.group}`];
    return known
      ? Promise.resolve(known)
      : Promise.reject(new Error("What is around the rollout is not in this file."));
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
      setPopulation("rollouts", h("b", null, held.said));
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
  const now = found(state.get());
  return h(
    "select",
    {
      class: "rt-select",
      "aria-label": "Rollout",
      testid: "shared-pick",
      onchange: event =>
        state.set({ page: "rollouts", id: event.target.value, step: null, group: null, sample: null, token: null }),
    },
    state.get().page === "rollouts"
      ? null
      : h("option", { value: "", selected: true }, `${held.rollouts.length} rollouts`),
    held.rollouts.map(rollout =>
      h("option", { value: rollout.id, selected: state.get().page === "rollouts" && rollout === now }, name(rollout)),
    ),
  );
}

let shown = null;
let back = pages[0];
const top = h("div", { class: "rt-pickers" });
const population = h("div", { class: "rt-population", testid: "population" });

async function refresh(changed) {
  const now = state.get();
  if (!pages.includes(now.page)) {
    state.set({ page: back }, { fill: true });
    setPopulation(back, NOT_HERE);
    return;
  }
  back = now.page;
  const page = await whenReady(now.page);
  showPopulationOf(now.page);
  replace(
    top,
    h("b", { class: "rt-ellipsis" }, inert(held.title)),
    picker(),
    pages.length > 1
      ? pages.map(name =>
          button(titles[name], () => state.set({ page: name, token: null }), {
            class: "rt-ghost",
            "aria-pressed": String(name === now.page),
            testid: `shared-${name}`,
          }),
        )
      : null,
  );
  if (shown !== page) {
    shown?.element.classList.remove("rt-active");
    page.element.classList.add("rt-active");
    shown = page;
    page.update(now, new Set(state.KEYS));
  } else page.update(now, changed);
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
document.documentElement.dataset.rtTheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
onPopulation(parts => {
  replace(population, parts);
  population.title = population.textContent;
});
document.body.append(
  h(
    "div",
    { class: "rt-view" },
    h(
      "header",
      { class: "rt-top" },
      h("span", { class: "rt-brand" }, "rollout traces"),
      top,
      h(
        "div",
        { class: "rt-top-tools rt-shared-tools" },
        button("◐", toggleTheme, {
          class: "rt-ghost",
          title: "Light or dark (t)",
          "aria-label": "Light or dark",
          testid: "theme",
        }),
        button("?", showHelp, {
          class: "rt-ghost",
          title: "Keyboard (?)",
          "aria-label": "Keyboard help",
          testid: "help-button",
        }),
      ),
    ),
    h(
      "footer",
      { class: "rt-status" },
      population,
      h("div", { class: "rt-faint", testid: "shared-made" }, inert(held.made)),
    ),
  ),
);
for (const name of pages) {
  const element = h("div", { class: "rt-view rt-page" }, frames[name]());
  document.body.append(element);
  mounts[name](element);
}
listenToKeys();
state.set({ ...held.place, ...held.start }, { fill: true });
state.subscribe((now, changed) => refresh(changed));
refresh(new Set(state.KEYS));
