// Two runs: curves over each other by steps, rollouts or tokens; settings that differ; ways to what else differs.

import { button, h, notice, replace } from "../../lib/dom.js";
import { catalog, register, setPopulation } from "../../lib/pages.js";
import { latest, remote } from "../../lib/remote.js";
import { number } from "../../lib/format.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { axisPicker, isLog, logButton } from "../charts/axis_controls.js";
import { AXES, along, weightFor } from "../charts/scale.js";
import { attemptsNote, chartsOf, shortName } from "../charts/script.js";
import { legend, seriesChart } from "../charts/series_chart.js";
import { differences } from "./differences.js";

const MOST_OFFERED = 400;

let call;
let root;
let shownFor = "";
let data = null;
let width = 0;
const newest = latest();
const slot = () => root.querySelector(".rt-runs");

export function mount(element, server) {
  root = element.closest(".rt-view") || element;
  call = remote(server);
  register("runs", { element: root, update, news() {} });
  new ResizeObserver(() => {
    if (data && Math.abs(slot().clientWidth - width) > 8) draw();
  }).observe(slot());
}

function update(now, changed) {
  const other =
    catalog.runs.find(run => run.name === now.other && run.name !== now.run) ||
    catalog.runs.find(run => run.name !== now.run);
  if (!other) {
    shownFor = "";
    data = null;
    setPopulation("runs");
    return replace(slot(), notice("info", "One run alone", "This project has no second run to lay over it."));
  }
  if (now.other !== other.name) return state.set({ other: other.name }, { fill: true });
  const wanted = JSON.stringify([now.project, now.run, now.split, now.other, now.charts ?? null]);
  if (wanted !== shownFor) {
    shownFor = wanted;
    load(now);
  } else if (data && ["step", "smooth", "axis", "log"].some(key => changed.has(key))) draw();
  return undefined;
}

function load(now) {
  if (!data) replace(slot(), h("div", { class: "rt-loading" }, "Reading both runs…"));
  newest(
    call("two_runs", {
      project: now.project,
      run: now.run,
      other: now.other,
      split: now.split,
      names: chartsOf(now.charts).flat(),
    }),
    answer => {
      data = answer;
      draw();
    },
    error => {
      data = null;
      setPopulation("runs");
      replace(slot(), notice("error", "The runs could not be read", error.message));
    },
  );
}

function draw() {
  const now = state.get();
  const node = slot();
  const keep = node.scrollTop;
  width = node.clientWidth;
  const columns = Math.max(1, Math.min(4, Math.floor(width / 380)));
  const wide = Math.floor((width - 36 - (columns - 1) * 14) / columns) - 28;
  setPopulation(
    "runs",
    h("b", null, inert(data.runs.a)),
    " and ",
    h("b", null, inert(data.runs.b)),
    " · numbers that the runs logged; rollouts and tokens seen are of all rollouts, from the ledger",
  );
  replace(
    node,
    head(now),
    legend([{ name: data.runs.a }, { name: data.runs.b }]),
    attemptsNote(data.resumed_at.a, data.runs.a),
    attemptsNote(data.resumed_at.b, data.runs.b),
    data.shown.length
      ? h(
          "div",
          { class: "rt-run-grid", style: { "grid-template-columns": `repeat(${columns}, minmax(0, 1fr))` } },
          data.shown.map(name => card(name, now, wide)),
        )
      : h("p", { class: "rt-empty" }, "Neither run logged a number."),
    h(
      "section",
      { class: "rt-run-block", testid: "settings" },
      h("h2", null, "Settings that differ", h("span", { class: "rt-faint" }, ` ${number(data.settings.length)}`)),
      data.settings.length
        ? differences(data.settings, data.runs.a, data.runs.b)
        : h("p", { class: "rt-soft" }, "None."),
    ),
  );
  node.scrollTop = keep;
}

function head(now) {
  const step = now.step === undefined ? null : Number(now.step);
  const explain = patch =>
    state.set({
      page: "explain",
      where: null,
      steps: null,
      against: new URLSearchParams({ run: data.runs.b }).toString(),
      ...patch,
    });
  return h(
    "div",
    { class: "rt-flip-pickers rt-runs-head" },
    h("b", null, inert(data.runs.a)),
    h("span", { class: "rt-soft" }, "and"),
    h(
      "select",
      {
        class: "rt-select",
        "aria-label": "The other run",
        testid: "other-run",
        onchange: event => state.set({ other: event.target.value }),
      },
      catalog.runs
        .filter(run => run.name !== now.run)
        .map(run => h("option", { value: run.name, selected: run.name === now.other }, run.label)),
    ),
    axisPicker(now, {
      rollouts: [...(data.progress.a.rollouts || []), ...(data.progress.b.rollouts || [])],
      tokens: [...(data.progress.a.tokens || []), ...(data.progress.b.tokens || [])],
    }),
    button("explain one against the other", () => explain({ step: null }), {
      testid: "runs-explain",
      title: `All of ${data.runs.a} against all of ${data.runs.b}`,
    }),
    step === null
      ? null
      : button(`explain at step ${number(step)}`, () => explain({ step }), { testid: "runs-explain-step" }),
    data.evaluations.length
      ? button("flips on shared prompts", () => state.set({ page: "flips", evals: null }), { testid: "runs-flips" })
      : null,
    more(),
  );
}

function more() {
  const others = data.names.filter(name => !data.shown.includes(name));
  return h(
    "select",
    {
      class: "rt-by",
      "aria-label": "Another chart",
      testid: "runs-more",
      onchange: event =>
        event.target.value && state.set({ charts: [...data.shown, event.target.value].join(",") }, { fill: true }),
    },
    h("option", { value: "" }, "another chart"),
    others.slice(0, MOST_OFFERED).map(name => h("option", { value: name }, name)),
  );
}

function card(name, now, wide) {
  const axis = now.axis || "step";
  const series = ["a", "b"].map(side => {
    const found = data.series[side][name] || { steps: [], values: [] };
    return { name: data.runs[side], ...found, x: along(axis, data.progress[side], found.steps) };
  });
  const values = series.flatMap(each => each.values);
  const missing = series.filter(each => !each.steps.length).map(each => each.name);
  const step = now.step === undefined ? null : Number(now.step);
  return h(
    "figure",
    { class: "rt-run-card", testid: "runs-card", dataset: { metric: name } },
    h(
      "figcaption",
      null,
      h("span", { class: "rt-ellipsis", title: name }, shortName(name, now.split)),
      logButton(now, name, values),
      missing.length ? h("span", { class: "rt-faint" }, inert(`not in ${missing.join(", ")}`)) : null,
    ),
    seriesChart(series, {
      width: wide,
      height: 130,
      step,
      weight: points => weightFor(now.smooth, points),
      log: isLog(now, name),
      xName: AXES[axis],
      label: `${name} of both runs over ${AXES[axis]}`,
      onStep: picked => state.set({ step: picked }),
    }),
  );
}
