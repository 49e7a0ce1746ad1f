// How rollouts went through a step: lanes of time, the funnel, the reward functions.

import { block, button, h, notice, replace, segmented } from "../../lib/dom.js";
import { number, plural, seconds } from "../../lib/format.js";
import { toRollout, toRows } from "../../lib/going.js";
import { askPopulation, mounted, splitOf } from "../../lib/pages.js";
import { latest } from "../../lib/remote.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { atStep, stepKeys } from "../step_pager/script.js";
import { LanesCanvas } from "./canvas.js";
import { funnelTable, functionsTable } from "./tables.js";

const KEYS = ["project", "run", "split", "step", "lane", "minutes"];
const WINDOWS = [
  ["step", "the step"],
  ["1", "last minute"],
  ["5", "5 minutes"],
  ["15", "15 minutes"],
];
const NAMES = { engine: "engines", source: "environments", rollout: "rollouts" };

let call;
let root;
let shownFor = "";
let drawn = null;
const newest = latest();
const newestFunnel = latest();
const newestFunctions = latest();
const part = selector => root.querySelector(selector);

export function mount(element, server) {
  [root, call] = mounted("lanes", element, server, { update, news });
  stepKeys({ page: "lanes", section: "Lanes" });
}

function update(now) {
  const nothing = () => replace(part(".rt-lanes-time"), notice("info", "No rollouts in this split yet", ""));
  if (!atStep(part(".rt-step-pager"), now, nothing)) return undefined;
  const wanted = state.valuesOf(now, KEYS);
  if (wanted !== shownFor) load(now, wanted);
  return undefined;
}

function news(now) {
  const steps = splitOf(now)?.steps || [];
  if (now.follow && steps.length && Number(now.step) !== steps.at(-1)) return state.set({ step: steps.at(-1) });
  return load(now, state.valuesOf(now, KEYS));
}

function load(now, wanted) {
  if (shownFor !== wanted && !drawn) replace(part(".rt-lanes-time"), h("div.rt-loading", "Reading the spans\u2026"));
  shownFor = wanted;
  const asked = state.placeAtStep(now);
  const failed = (slot, title) => error => replace(part(slot), notice("error", title, error.message));
  newest(
    call("lanes", { ...asked, by: now.lane || "", minutes: now.minutes || 0 }),
    draw,
    failed(".rt-lanes-time", "The lanes could not be read"),
  );
  newestFunnel(
    call("funnel", asked),
    answer => replace(part(".rt-lanes-funnel"), funnelTable(answer)),
    failed(".rt-lanes-funnel", "The funnel could not be read"),
  );
  newestFunctions(
    call("reward_functions", state.placeOf(now)),
    answer => replace(part(".rt-lanes-functions"), functionsTable(answer, Number(now.step))),
    failed(".rt-lanes-functions", "The reward functions could not be read"),
  );
  askPopulation("lanes", call, asked);
}

function draw(answer) {
  const now = state.get();
  drawn?.forget();
  drawn = null;
  replace(
    part(".rt-lanes-tools"),
    segmented(
      "A lane for each of",
      answer.by,
      answer.choices.map(by => [by, NAMES[by]]),
      lane => state.set({ lane }),
      "lane",
    ),
    segmented(
      "Time shown",
      now.minutes || "step",
      WINDOWS,
      minutes => state.set({ minutes: minutes === "step" ? null : minutes }),
      "minutes",
    ),
  );
  const notes = [
    answer.said.map(text => h("p.rt-lanes-said#lanes-said", inert(text))),
    answer.unobserved.map(text => h("p.rt-soft#lanes-unobserved", inert(text))),
  ];
  const show = (note, ...inside) =>
    replace(part(".rt-lanes-time"), block("section.rt-lanes-block", "Lanes of time", note, ...inside));
  if (!answer.spans.lane.length) return show(null, notes);
  drawn = new LanesCanvas(answer, { open: rollout => toRollout(rollout), dense: answer.by === "rollout" });
  const steps = answer.steps.length > 1 ? `, steps ${number(answer.steps[0])} to ${number(answer.steps.at(-1))}` : "";
  show(
    `${plural(answer.spans.lane.length, "span")} of ${number(answer.n_timed)} of ${plural(answer.n_rows, "rollout")} in ${seconds(answer.ms / 1000)}${steps}, from ${new Date(answer.began * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC; drag to look closer, a click opens the rollout`,
    answer.tail ? tail(answer.tail) : null,
    drawn.root,
    notes,
  );
  drawn.draw();
  return undefined;
}

function tail({ text, where, n }) {
  return h(
    "p.rt-lanes-tail#lanes-tail",
    h("b", inert(text)),
    " ",
    button(`list ${n === 1 ? "it" : "them"}`, () => toRows(where, { flag: null }), { testid: "lanes-tail-list" }),
  );
}
