// What differs between two sets of rollouts. A stands in the address as run, split, step or steps, and filter; B as `against`.

import { choice, ghost, h, notice, replace } from "../../lib/dom.js";
import { number, plural } from "../../lib/format.js";
import { toRollout, toRows } from "../../lib/going.js";
import { catalog, mounted, runOf, setPopulation, splitOf } from "../../lib/pages.js";
import { latest } from "../../lib/remote.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { pointed } from "../filter_bar/script.js";
import { KINDS, asked, formatAgainst, kindOf, parseAgainst } from "./against.js";
import { explanation, inForce } from "./explanation.js";

const LEFT = { explain: null, steps: null, against: null };
const ASKED = ["project", "run", "split", "step", "steps", "where", "against"];

let call;
let root;
let shownFor = "";
const newest = latest();
const newestForce = latest();
const part = selector => root.querySelector(selector);

export function mount(element, server) {
  [root, call] = mounted("explain", element, server, { update });
}

function update(now) {
  const steps = splitOf(now)?.steps || [];
  if (now.step === undefined && !now.steps && !now.where && !now.against && steps.length)
    return state.set({ step: steps.at(-1) }, { fill: true });
  drawSides(now);
  const wanted = state.valuesOf(now, ASKED);
  if (wanted !== shownFor) {
    shownFor = wanted;
    load(now);
  }
  return undefined;
}

// What a reader can do from an explanation, on this page and beside the Run page.
export function actions(request, figures) {
  return {
    rollouts: place =>
      toRows(place.where, { run: place.run || undefined, split: place.split || undefined, step: null, ...LEFT }),
    open: (id, mark) => toRollout({ id }, { mark, ...LEFT }),
    figures: (of, at) => figures("figures", { ...request, of, at }),
  };
}

function load(now) {
  const request = asked(now);
  const slot = part(".rt-explain-answer");
  setPopulation("explain");
  replace(slot, h("div.rt-loading", "Comparing…"));
  newest(
    call("explain", request),
    answer => {
      const { head, findings, beside } = explanation(answer, actions(request, call));
      const force = h("section#in-force");
      replace(
        slot,
        h("div.rt-explain-head", head),
        h("div.rt-explain-columns", h("div", findings), h("div", beside, force)),
      );
      setPopulation(
        "explain",
        h("b", `${plural(answer.rows[0], "rollout")} against ${number(answer.rows[1])}`),
        " · figures are over all rollouts, from the ledger; phrases are of those kept at random, those of winners of the pairs that were kept",
      );
      askInForce(request, force);
    },
    error =>
      replace(
        slot,
        error.start !== undefined
          ? h("div.rt-notice", pointed(error))
          : notice("error", "These could not be compared", error.message),
      ),
  );
}

function askInForce(request, slot) {
  newestForce(
    call("in_force", request),
    answer => {
      if (answer.diagnoses.length) replace(slot, inForce("Diagnosed at these steps", answer.diagnoses));
    },
    () => replace(slot),
  );
}

const field = (label, value, placeholder, choose, testid, wide = false) =>
  h(
    "label",
    { class: `rt-side-field${wide ? " rt-wide" : ""}` },
    h("span.rt-label", label),
    h("input.rt-input", {
      value,
      placeholder,
      testid,
      spellcheck: "false",
      autocomplete: "off",
      onchange: event => choose(event.target.value.trim()),
    }),
  );
function drawSides(now) {
  const slot = part(".rt-explain-sides");
  const b = parseAgainst(now.against);
  const kind = kindOf(b);
  const put = patch => state.set({ against: formatAgainst({ ...b, ...patch }) });
  const range = value =>
    /^\d+$/.test(value) ? { step: Number(value), steps: null } : { steps: value || null, step: null };
  const runs = catalog.runs.map(run => [run.name, run.label]);
  const others = catalog.runs.filter(run => run.name !== now.run);
  const splits = (runOf(now)?.splits || []).filter(split => split.name !== now.split);
  const kinds = Object.entries(KINDS).filter(
    ([name]) =>
      (name !== "run" || others.length) && (name !== "split" || splits.length) && (name !== "rest" || now.where),
  );
  replace(
    slot,
    h(
      "div.rt-side#side-a",
      h("b", "A"),
      h("span.rt-soft", `${inert(now.run || "")}, ${inert(now.split || "")}`),
      field("steps", now.steps || now.step || "", "all; 85 or 10:20", value => state.set(range(value)), "a-steps"),
      field(
        "filter",
        now.where || "",
        "all rollouts; such as engine = 'vllm-1'",
        value => state.set({ where: value || null }),
        "a-where",
        true,
      ),
    ),
    h(
      "div.rt-side#side-b",
      h("b", "B"),
      choice("against", kind, kinds, chosen => choose(chosen, others, splits), "b-kind"),
      "run" in b && choice("run", b.run, runs, run => put({ run }), "b-run"),
      "split" in b &&
        choice(
          "split",
          b.split,
          (runOf(now)?.splits || []).map(split => [split.name, split.name]),
          split => put({ split }),
          "b-split",
        ),
      "steps" in b && field("steps", b.steps, "as A; 85 or 10:20", value => put({ steps: value }), "b-steps"),
      "where" in b && field("filter", b.where, "all rollouts", value => put({ where: value }), "b-where", true),
      kind === "run" && !("steps" in b) && ghost("other steps", () => put({ steps: "" })),
      ghost("swap", () => swap(now, b), {
        disabled: ["before", "rest"].includes(kind),
        title: "A and B change places",
      }),
    ),
  );
}

function choose(kind, others, splits) {
  const patch = {
    before: {},
    rest: { rest: "1" },
    steps: { steps: "" },
    split: { split: splits[0]?.name },
    run: { run: others[0]?.name },
    where: { where: "" },
  }[kind];
  state.set({ against: formatAgainst(patch) });
}

function swap(now, b) {
  const patch = {};
  const other = {};
  for (const [name, value] of Object.entries(b)) {
    patch[name] = value || null;
    other[name] = name === "steps" ? now.steps || now.step || "" : now[name] || "";
  }
  if ("steps" in patch) patch.step = null;
  state.set({ ...patch, against: formatAgainst(other) });
}
