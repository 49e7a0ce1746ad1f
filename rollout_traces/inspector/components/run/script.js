// The run at a glance: what is wrong, since when, for whom; a point of a chart opens what differs there.

import { block, button, ghost, h, notice, onWidth, redrawn, replace, sideHead, svg } from "../../lib/dom.js";
import { usualLine } from "../../lib/flags.js";
import { inUnit, number, plural } from "../../lib/format.js";
import { toExplain, toRows } from "../../lib/going.js";
import { mounted, setPopulation, splitOf } from "../../lib/pages.js";
import { latest } from "../../lib/remote.js";
import { inFile, isStatic, shareButton } from "../../lib/share.js";
import * as state from "../../lib/state.js";
import { firstWords, inert } from "../../lib/text.js";
import { axisPicker, isLog, logButton } from "../charts/axis_controls.js";
import { differences } from "../runs/script.js";
import { lineChart } from "../charts/series_chart.js";
import { AXES, along, besides, weightFor } from "../charts/scale.js";
import { explanation, inForce } from "../explain/explanation.js";
import { queries } from "../explain/queries.js";
import { actions } from "../explain/script.js";

const AGAIN_AFTER = 20000;
const SHOWN = 10; // diagnoses that are unfolded
const MARKED = 3; // diagnoses whose first step is marked on the charts
const STRIP = { left: 8, right: 8, row: 22, letter: 6.6 };

let call;
let root;
let shownFor = "";
let data = null; // of run_curves first, which run_report then replaces: only that has a verdict
let drawn = null; // the data whose sentences stand on the page
let read = 0;
let loading = null;
const newest = latest();
const newestExplanation = latest();
const part = selector => root.querySelector(selector);

export function mount(element, server) {
  [root, call] = mounted("run", element, server, {
    update,
    news: now => {
      if (Date.now() - read > AGAIN_AFTER) load(now);
    },
  });
  onWidth(part(".rt-run-main"), () => data && (drawn === data ? drawPictures() : draw()));
}

function update(now, changed) {
  const wanted = JSON.stringify(state.placeOf(now));
  if (wanted !== shownFor) {
    shownFor = wanted;
    data = drawn = null;
    loading = load(now);
  } else if (data && drawn === data && ["smooth", "step", "axis", "log"].some(key => changed.has(key))) drawPictures();
  if (changed.has("explain") || changed.has("step")) explain(now);
  return loading;
}

function load(now) {
  read = Date.now();
  const report = () => newest(call("run_report", state.placeOf(now)), show, late);
  if (data) return report();
  setPopulation("run");
  replace(part(".rt-run-main"), h("div.rt-loading", "Looking at every step…"));
  return newest(
    call("run_curves", state.placeOf(now)),
    answer => {
      if (answer.n_rows) show(answer);
      return report();
    },
    failed,
  );
}

function show(answer) {
  data = answer;
  setPopulation(
    "run",
    h("b", `${plural(answer.n_rows, "rollout")} in ${plural(answer.n_steps, "step")}`),
    answer.kept_only
      ? " · figures are over these"
      : " · figures are over all rollouts, from the ledger; what needs text is over those kept at random",
  );
  draw();
  drawInForce();
}

// The curves stay whatever becomes of the verdict.
function late(error) {
  if (!data) return failed(error);
  data = { ...data, failure: error.message };
  draw();
}

function failed(error) {
  replace(part(".rt-run-main"), notice("error", "The run could not be read", error.message));
}

const ask = step => state.set({ explain: 1, step });

// Leads to the rows of a filter; a shared file has none.
function rolloutsButton(where, testid) {
  if (!where || inFile()) return null;
  return ghost("rollouts", () => toRows(where, { explain: null, step: null }), { title: where, testid });
}

function draw() {
  const main = part(".rt-run-main");
  if (!main.clientWidth) return; // hidden: it is drawn when it is seen
  drawn = data;
  if (!data.n_rows) {
    replace(
      main,
      notice("info", splitOf(state.get()) ? "No ledger in this split" : "No rollouts in this run yet", ...data.remarks),
      button(splitOf(state.get()) ? "the kept rollouts" : "what it logged", () => state.set({ page: "rollouts" })),
    );
    return;
  }
  const keep = main.scrollTop;
  const known = Boolean(data.verdict);
  replace(
    main,
    h(
      "div.rt-run-parts",
      h(
        "div",
        { class: `rt-run-told ${known || data.failure ? "" : "rt-run-pending"}` },
        known
          ? [verdict(), data.settings?.changes.length ? settings() : null, diagnoses(), h("div.rt-run-timeline")]
          : h(
              "div.rt-run-verdict.rt-sev-unknown#run-pending",
              h(
                "div",
                h("i"),
                data.failure ? inert(`The verdict could not be made: ${data.failure}`) : "Looking for what changed…",
              ),
            ),
      ),
      h("div.rt-run-pictures"),
      known && h("div.rt-run-more-told", events(), data.settings?.changes.length ? null : settings(), unobserved()),
    ),
  );
  drawPictures();
  main.scrollTop = keep;
}

// What another step, axis or width changes: what was unfolded above stays, and a chart that has the focus keeps it.
function drawPictures() {
  const pictures = part(".rt-run-pictures");
  if (!pictures?.clientWidth) return;
  const now = state.get();
  const step = now.step === undefined ? null : Number(now.step);
  const { style, wide } = besides(pictures.clientWidth + 36, 320, 4);
  const told = part(".rt-run-told").clientWidth;
  if (data.verdict) redrawn(part(".rt-run-timeline"), () => replace(part(".rt-run-timeline"), strip(told - 30, step)));
  for (const slot of root.querySelectorAll(".rt-diagnosis-chart")) {
    const { chart, step: first } = data.diagnoses[slot.dataset.at];
    redrawn(slot, () => replace(slot, card(chart, step, slot.clientWidth, [first])));
  }
  redrawn(pictures, () =>
    replace(
      pictures,
      h(
        "div.rt-run-metrics",
        h("h2", "Metrics that matter"),
        axisPicker(now, data.progress),
        isStatic() ? null : h("span.rt-faint", "a click explains the step"),
      ),
      h.each("div.rt-run-grid", { style }, data.metrics, metric => card(metric, step, wide)),
    ),
  );
}

function shared() {
  const now = state.get();
  return {
    ...state.placeOf(now),
    what: "explain",
    step: now.explain && now.step !== undefined ? Number(now.step) : null,
  };
}

function verdict() {
  const { severity, text, since } = data.verdict;
  return h(
    "div#run-verdict",
    { class: `rt-run-verdict ${severity && `rt-sev-${severity}`}` },
    h("div", h("i"), text, since === null ? null : ` since step ${number(since)}${lasting(severity)}`),
    h(
      "span",
      `${plural(data.n_steps, "step")}, ${plural(data.n_rows, "rollout")}${data.unobserved.length ? `, ${data.unobserved.length} unobserved below` : ""}`,
    ),
    shareButton(call, shared),
    data.remarks.map(remark => h("span", inert(remark))),
    (data.problems || []).map(problem => h("span#run-problem", inert(`left out, because it raised: ${problem}`))),
    data.usual.length ? h("span#usual-flags", inert(usualLine(data.usual))) : null,
  );
}

// How many of what is wrong are there at the newest step, where that is not all of them.
function lasting(severity) {
  const wrong = data.diagnoses.filter(each => each.severity === severity);
  const nNow = wrong.filter(each => each.in_force).length;
  if (nNow === wrong.length) return "";
  return nNow ? `, ${number(nNow)} of them still` : ", over by now";
}

// What is wrong is unfolded; where nothing is, what there is to know. What may be chance is folded.
function diagnoses() {
  const found = data.diagnoses.map((each, at) => ({ ...each, at }));
  if (!found.length) return null;
  const wrong = found.filter(each => each.severity !== "info");
  const sure = found.filter(each => each.severity === "info" && each.is_sure);
  const doubtful = found.filter(each => each.severity === "info" && !each.is_sure);
  const shown = (wrong.length ? wrong : sure).slice(0, SHOWN);
  const more = [...wrong, ...sure].filter(each => !shown.includes(each));
  const folded = (testid, listed, words) =>
    listed.length > 0 &&
    h(
      "details",
      { "data-testid": testid },
      h("summary", `${number(listed.length)}${shown.length ? " more" : ""}${words}`),
      listed.map(diagnosis),
    );
  return h(
    "section.rt-run-block#diagnoses",
    shown.map(diagnosis),
    folded("diagnoses-folded", more, shown.length < wrong.length ? "" : " to know"),
    folded("perhaps-chance", doubtful, " that may be chance"),
  );
}

// Before the first step there is nothing to compare with.
const hasBefore = step => step !== null && step > data.steps[0];

function diagnosis(each) {
  const slot = h("div.rt-run-query");
  return h(
    "div.rt-diagnosis#diagnosis",
    { dataset: { series: (each.series || [])[0] || each.name } },
    h("b", { class: `rt-sev-${each.severity}` }, each.severity),
    h(
      "p",
      h(
        "span.rt-run-tier",
        each.in_force && each.severity !== "info" ? h("b#in-force", "in force · ") : null,
        each.tier,
      ),
      inert(each.sentence),
    ),
    h(
      "div.rt-run-more",
      each.advice ? h("span.rt-soft", each.advice) : null,
      hasBefore(each.step) &&
        ghost(`explain step ${number(each.step)}`, () => ask(each.step), { testid: "diagnosis-explain" }),
      each.flips &&
        !isStatic() &&
        ghost(
          "which prompts were lost",
          () =>
            state.set({
              page: "flips",
              split: each.flips[0],
              evals: `${each.flips[1]}:${each.flips[2]}`,
              other: null,
              step: null,
            }),
          { testid: "diagnosis-flips" },
        ),
      rolloutsButton(each.where, "diagnosis-rollouts"),
      queries(slot, () => call("diagnosis_figures", { ...state.placeOf(state.get()), diagnosis: each.at }), each.step),
    ),
    slot,
    each.chart && h("div.rt-diagnosis-chart", { dataset: { at: each.at } }),
    each.consequences.length > 0 &&
      h(
        "ul",
        each.consequences.slice(0, 6).map(one => h("li", inert(one.sentence))),
        each.consequences.length > 6 && h("li", `and ${each.consequences.length - 6} more`),
      ),
  );
}

// Diagnoses as bars over the steps, first seen and change points as marks under them.
function strip(wide, step) {
  const [first, last] = data.steps;
  const heads = data.diagnoses.filter(each => each.step !== null && each.is_sure).slice(0, 8);
  if (!heads.length && !data.events.length) return null;
  const height = STRIP.row * (heads.length + 1) + 18;
  const x = at => STRIP.left + (last > first ? (at - first) / (last - first) : 0.5) * (wide - STRIP.left - STRIP.right);
  const picture = svg("svg.rt-run-strip", {
    width: wide,
    height,
    viewBox: `0 0 ${wide} ${height}`,
    role: "group",
    "aria-label": "The run as a timeline",
  });
  heads.forEach((each, i) => {
    const start = x(each.step);
    const bar = svg(
      "rect",
      {
        class: `rt-mark rt-bar-${each.severity}`,
        x: start,
        y: i * STRIP.row + 14,
        width: Math.max(x(each.last ?? last) - start, 3),
        height: 4,
        rx: 2,
      },
      svg("title", inert(each.sentence)),
    );
    leadsTo(bar, each.step);
    const when = `, step ${each.step}`;
    const words = firstWords((each.series || [])[0] || each.name, Math.floor(wide / STRIP.letter) - when.length) + when;
    const fits = Math.max(Math.min(start, wide - STRIP.letter * words.length), 0);
    picture.append(bar, svg("text", { x: fits, y: i * STRIP.row + 10 }, words));
  });
  const base = heads.length * STRIP.row + 10;
  picture.append(svg("line", { x1: STRIP.left, x2: wide - STRIP.right, y1: base, y2: base }));
  for (const event of data.events) {
    const mark = svg(
      "circle",
      {
        class: `rt-mark ${event.kind === "change" || event.kind === "attempt" ? "" : "rt-mark-quiet"}`,
        cx: x(event.step),
        cy: base,
        r: event.kind === "change" ? 4 : 3,
      },
      svg("title", inert(event.sentence)),
    );
    leadsTo(mark, event.step);
    picture.append(mark);
  }
  if (step !== null) picture.append(svg("line.rt-now", { x1: x(step), x2: x(step), y1: 0, y2: base + 6 }));
  picture.append(
    svg("text", { x: STRIP.left, y: height - 2 }, `step ${number(first)}`),
    svg("text", { x: wide - STRIP.right, y: height - 2, "text-anchor": "end" }, number(last)),
  );
  return block("section.rt-run-block#timeline", "Timeline", null, picture);
}

function leadsTo(mark, step) {
  if (!hasBefore(step)) return;
  mark.classList.add("rt-leads");
  mark.setAttribute("tabindex", "0");
  mark.setAttribute("role", "button");
  mark.addEventListener("click", () => ask(step));
  mark.addEventListener("keydown", event => {
    if (event.key === "Enter") ask(step);
  });
}

// The first steps of what is wrong, which every chart marks.
function begun() {
  const wrong = (data.diagnoses || []).filter(each => each.severity !== "info" && each.step !== null);
  return [...new Set(wrong.slice(0, MARKED).map(each => each.step))];
}

function card(metric, step, chartWidth, marked = begun()) {
  const now = state.get();
  const axis = now.axis || "step";
  const at = step === null ? metric.steps.length - 1 : metric.steps.indexOf(step);
  return h(
    "figure.rt-run-card#run-card",
    { dataset: { metric: metric.key } },
    h(
      "figcaption",
      h("span.rt-ellipsis", { title: metric.title }, inert(metric.title)),
      logButton(now, metric.key, metric.values, metric.title),
      h("b", inUnit(metric.unit, metric.values[at >= 0 ? at : metric.values.length - 1])),
    ),
    lineChart(metric.steps, metric.values, {
      width: chartWidth,
      height: 84,
      step,
      begun: marked,
      weight: weightFor(now.smooth, metric.steps.length),
      log: isLog(now, metric.key),
      x: along(axis, data.progress, metric.steps),
      xName: axis === "step" ? null : AXES[axis],
      onStep: ask,
      label: metric.title,
      show: value => inUnit(metric.unit, value),
    }),
  );
}

function events() {
  if (!data.events.length) return null;
  return block(
    "section.rt-run-block#events",
    "What happened",
    null,
    h("div.rt-run-events", data.events.map(eventLine)),
    data.n_events > data.events.length &&
      h("p.rt-faint", `${number(data.n_events)} in all; rollout-traces events lists them.`),
  );
}

function eventLine(event, at) {
  const slot = h("div.rt-run-query");
  return h(
    "div#event",
    h(
      "div.rt-event",
      h(
        hasBefore(event.step) ? "button.rt-event-step" : "div",
        hasBefore(event.step) ? { onclick: () => ask(event.step) } : {},
        h("b", `step ${number(event.step)} `),
        inert(event.sentence),
      ),
      event.kind !== "config" &&
        queries(slot, () => call("diagnosis_figures", { ...state.placeOf(state.get()), event: at }), event.step),
    ),
    slot,
  );
}

function settings() {
  if (!data.settings) return null;
  const { run, changes } = data.settings;
  return h(
    "section.rt-run-block#settings",
    h(
      "h2",
      "Settings",
      h("span.rt-faint", ` against ${inert(run)}, the run before`),
      " ",
      ghost("both runs", () => state.set({ page: "runs", other: run, explain: null }), { testid: "to-runs" }),
    ),
    changes.length
      ? differences(
          changes.map(({ key, a, b }) => ({ key, values: [a, b] })),
          [run, data.run],
        )
      : h("p.rt-soft", "The same."),
  );
}

function unobserved() {
  if (!data.unobserved.length) return null;
  return block(
    "section.rt-run-block#unobserved",
    "Unobserved",
    "not logged, so not known to be fine",
    data.unobserved.map(each =>
      h(
        "p.rt-soft",
        h("b", `${each.what}: `),
        `nothing is known of ${each.hides}. Log ${each.log.replaceAll("`", "")}.`,
      ),
    ),
  );
}

function explain(now) {
  const side = part(".rt-run-side");
  const open = Boolean(now.explain) && now.step !== undefined;
  root.querySelector(".rt-run").classList.toggle("rt-with-side", open);
  if (!open) return replace(side);
  const request = { ...state.placeOf(now), step: Number(now.step) };
  replace(side, h("div.rt-loading", "Comparing…"));
  return newestExplanation(
    call("explain", request),
    answer => {
      const { head, findings, beside } = explanation(answer, actions(request, call));
      replace(
        side,
        sideHead(
          `What changed at step ${number(Number(now.step))}`,
          !isStatic() &&
            ghost("widen", () => toExplain(), {
              title: "On a page of its own: other steps, filters, against …",
              testid: "explain-widen",
            }),
          ghost("close", () => state.set({ explain: null })),
        ),
        head,
        h("div.rt-in-force"),
        findings,
        beside,
      );
      drawInForce();
    },
    error => replace(side, notice("error", "The step could not be explained", error.message)),
  );
}

// The diagnoses may come after what differs, or before it.
function drawInForce() {
  const slot = part(".rt-in-force");
  if (!slot) return;
  const step = Number(state.get().step);
  const found = (data?.diagnoses || []).filter(
    each => each.step !== null && each.step <= step && (each.last === null || each.last >= step),
  );
  replace(slot, found.length ? h("section#in-force", inForce("Diagnosed at this step", found)) : null);
}
