// What clipping, masking and staleness rules would have done: over the step from its histogram of loss tokens, and over
// one kept rollout token for token.

import { ghost, h, notice, replace, select, table as tableOf } from "../../lib/dom.js";
import { number, percent, plural } from "../../lib/format.js";
import { isNamed, placed } from "../../lib/going.js";
import { shortcut } from "../../lib/keyboard.js";
import { askPopulation, mounted } from "../../lib/pages.js";
import { latest } from "../../lib/remote.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { atStep, stepKeys } from "../step_pager/script.js";
import { TranscriptView } from "../transcript/script.js";
import { ofRollout, tried } from "./cells.js";
import { RULES, declared, format, parse, tokenOf } from "./rules.js";

const KEYS = ["project", "run", "split", "step"];

let call;
let root;
let shownFor = "";
let drawnRules = "";
let data = null;
let cells = null;
let view = null;
let rolloutFor = "";
const newest = latest();
const newestRollout = latest();
const part = selector => root.querySelector(selector);

export function mount(element, server) {
  [root, call] = mounted("what_if", element, server, { update });
  const here = { page: "what_if", section: "What if" };
  stepKeys(here, { arrows: false });
  shortcut("j", "Next rollout", () => stepSample(1), here);
  shortcut("k", "Previous rollout", () => stepSample(-1), here);
  shortcut("e", "Next token that is cut", () => view?.jump(1), here);
}

function update(now, changed) {
  const nothing = () => replace(part(".rt-of-step"), notice("info", "No steps in this split yet", ""));
  if (!atStep(part(".rt-step-pager"), now, nothing)) return undefined;
  const wanted = state.valuesOf(now, KEYS);
  if (wanted !== shownFor) return load(now, wanted);
  if (!data) return undefined;
  if (changed.has("rules")) draw();
  if (["group", "sample", "id"].some(key => changed.has(key))) openRollout();
  return undefined;
}

function load(now, wanted) {
  shownFor = wanted;
  data = null;
  newest(
    call("what_if", state.placeAtStep(now)),
    answer => {
      data = answer;
      cells = answer.cells;
      drawnRules = "";
      draw();
      openRollout();
    },
    error => replace(part(".rt-of-step"), notice("error", "The step could not be read", error.message)),
  );
  askPopulation("what_if", call, state.placeAtStep(now));
}

function chosen() {
  const { rules } = state.get();
  return rules === undefined ? declared(data.declared) : parse(rules);
}

function choose(next) {
  state.set({ rules: format(next) }, { fill: true });
}

function draw() {
  const rules = chosen();
  drawRules(rules);
  drawStep(rules);
  if (view) drawRollout(rules);
}

// The sliders are drawn anew only when a rule is switched: a slider that is being moved stays.
function drawRules(rules) {
  const shape = JSON.stringify([...rules.keys(), shownFor]);
  if (shape === drawnRules) return;
  drawnRules = shape;
  part(".rt-rules-slot").replaceChildren(...RULES.map(rule => ruleBox(rule, rules.get(rule.key))));
}

function ruleBox(rule, values) {
  const own = rule.declared(data.declared);
  const current = values || own || rule.params.map(param => param.start);
  const toggle = on => {
    const next = chosen();
    if (on) next.set(rule.key, current);
    else next.delete(rule.key);
    choose(next);
  };
  const set = (i, value) => {
    const next = chosen();
    current[i] = value;
    next.set(rule.key, [...current]);
    choose(next);
  };
  return h(
    "div",
    { class: `rt-rule${values ? "" : " rt-rule-off"}`, testid: `rule-${rule.key}` },
    h(
      "label",
      h("input", { type: "checkbox", checked: Boolean(values), onchange: event => toggle(event.target.checked) }),
      rule.label,
      own &&
        h("span.rt-chip", { title: "What the run declares" }, `the run: ${own.map(value => number(value)).join(", ")}`),
    ),
    h("p", rule.meaning),
    rule.params.map((param, i) => {
      const bounded = { min: param.low, max: param.high, step: param.step, value: current[i] };
      const label = `${rule.label}: ${param.label}`;
      const figure = h("input.rt-input", { type: "number", "aria-label": label, ...bounded });
      const slider = h("input", {
        type: "range",
        "aria-label": `${label}, slider`,
        testid: `slider-${rule.key}-${i}`,
        ...bounded,
      });
      const moved = (from, to) => {
        const value = Number(from.value);
        if (from.value !== "" && value >= param.low && value <= param.high) {
          to.value = from.value;
          set(i, value);
        }
      };
      slider.addEventListener("input", () => moved(slider, figure));
      figure.addEventListener("input", () => moved(figure, slider));
      return h("div.rt-rule-param", h("span", param.label), slider, figure);
    }),
  );
}

const between = ([about, least, most]) =>
  about === null
    ? "no update"
    : Number.isNaN(about)
      ? "unobserved"
      : most - least < 0.0005
        ? percent(about)
        : `${percent(least)} to ${percent(most)}`;
function ofUpdate(values) {
  if (values[0] === null) return "This rollout: its advantages are 0, so it updates nothing";
  if (Number.isNaN(values[0])) return "This rollout: what the rules take of its update is unobserved";
  return `This rollout: the rules take ${between(values)} of its update`;
}

const bounds = ([about, least, most]) =>
  least === null || Number.isNaN(least)
    ? ""
    : most - least < 0.0005
      ? "exactly, at these thresholds"
      : `the histogram’s bins tell no more; about ${percent(about)} where tokens lie evenly in them`;

function drawStep(rules) {
  const slot = part(".rt-of-step");
  if (!cells) return replace(slot, notice("info", "The whole step cannot be tried", data.why));
  const started = performance.now();
  const found = tried(cells, rules);
  const blind = found.rules.filter(entry => entry.observed < 0.9995);
  replace(
    slot,
    h(
      "div.rt-taken#taken",
      figureBox(
        "tokens masked",
        found.all.masked,
        `of ${plural(found.all.tokens, "loss token")} of step ${number(data.step)}`,
      ),
      figureBox("tokens truncated", found.all.cut, "their weight is cut off, not removed"),
      figureBox("of the update taken away", found.all.update, "update = |A| × loss weight"),
    ),
    blind.length > 0 &&
      h.each(
        "p.rt-soft#unobserved-rules",
        blind,
        entry =>
          `${entry.rule.label}: ${entry.observed > 0 ? `unobserved for ${percent(1 - entry.observed)} of the tokens` : "unobserved"}, needs ${entry.rule.needs}. `,
      ),
    h(
      "div.rt-what-if-tables",
      table(
        "By rule, each alone",
        found.rules.map(entry => ({
          name: entry.rule.label,
          update: entry.observed ? entry.update : Array(3).fill(NaN),
        })),
        ["update"],
      ),
      table("By source", found.sources),
      table("By turn of the policy", found.turns),
    ),
  );
  root.dataset.took = String(Math.round(performance.now() - started));
  return undefined;
}

function figureBox(label, values, words) {
  return h(
    "section",
    h("b", between(values)),
    ` ${label}`,
    h("span.rt-faint", bounds(values)),
    h("span.rt-faint", words),
  );
}

function table(title, rows, columns = ["masked", "update"]) {
  const heads = { masked: "tokens masked", update: "update taken away" };
  const bar = values =>
    h("td", h("i", { style: { "--about": `${Math.min(100 * (values[0] || 0), 100)}%` }, title: bounds(values) }));
  const counted = rows?.some(row => row.tokens);
  const inside = rows
    ? tableOf(
        null,
        ["", counted && h("th.rt-num", "loss tokens"), columns.map(name => [h("th.rt-num", heads[name]), h("th")])],
        rows.map(row =>
          h.each(
            "tr",
            h("td.rt-ellipsis", inert(row.name)),
            counted && h("td.rt-num", number(row.tokens)),
            columns,
            name => [h("td.rt-num", { title: bounds(row[name]) }, between(row[name])), bar(row[name])],
          ),
        ),
      )
    : h("p.rt-faint", "The step's histogram had no room for it, or it was not logged.");
  return h("section.rt-bar-table", h("h2", title), inside);
}

function sample() {
  const now = state.get();
  return data.samples.find(card => isNamed(card, now)) || data.samples.find(card => card.advantage) || data.samples[0];
}

function stepSample(by) {
  if (!data?.samples.length) return;
  const at = data.samples.indexOf(sample());
  openCard(data.samples[Math.min(Math.max(at + by, 0), data.samples.length - 1)]);
}

function openCard(card) {
  state.set({ ...placed(card), step: state.get().step }, { fill: true });
}

function openRollout() {
  const slot = part(".rt-of-rollout");
  const card = sample();
  if (!card) {
    view = null;
    rolloutFor = "";
    replace(slot, h("p.rt-faint", "No rollout of this step was kept: which tokens are cut cannot be shown."));
    return;
  }
  if (rolloutFor === card.id) return;
  rolloutFor = card.id;
  newestRollout(
    call("rollout", { ...state.placeAtStep(state.get()), id: card.id }),
    rollout => {
      view?.forget();
      view = new TranscriptView(
        rollout,
        {
          scroller: part(".rt-what-if-main"),
          rules: chosen(),
          image: number => call("image", { project: state.get().project, id: rollout.id, number }),
          onChange: patch =>
            view.setLook({ ...patch, overlay: "overlay" in patch ? patch.overlay : view.look.overlay }),
        },
        { overlay: "what_if", view: "tokens" },
      );
      drawRollout(chosen());
    },
    error => replace(slot, notice("error", "This rollout could not be opened", error.message)),
  );
}

function drawRollout(rules) {
  const card = sample();
  const picker = select(
    data.samples.map(each => [
      each.id,
      `g${number(each.group)} #${number(each.sample)} · reward ${number(each.reward)}`,
    ]),
    card.id,
    id => openCard(data.samples.find(each => each.id === id)),
    { "aria-label": "Rollout", testid: "what-if-sample" },
  );
  const head = h(
    "div.rt-of-rollout-head",
    h("h2", "Which tokens, in one kept rollout"),
    picker,
    ghost("open under Rollouts", () => state.set({ page: "rollouts", overlay: null, rules: null })),
    h("span.rt-faint", "only kept rollouts have their tokens"),
  );
  if (!view.tokens) {
    replace(part(".rt-of-rollout"), head, h("p.rt-faint", "This one has no token data."));
    return;
  }
  view.setRules(rules);
  const found = ofRollout(view.tokens, view.rollout.turns, rules, tokenOf(view.tokens));
  replace(
    part(".rt-of-rollout"),
    head,
    h("div.rt-what-if-tables", table(ofUpdate(found.all.update), [{ name: "all", ...found.all }, ...found.turns])),
    view.root,
  );
}
