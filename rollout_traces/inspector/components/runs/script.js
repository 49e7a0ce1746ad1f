// Several runs: curves over each other by steps, rollouts or tokens; settings that differ; ways to what else differs.

import { block, button, ghost, h, notice, onWidth, replace, scrolling, select, table } from "../../lib/dom.js";
import { toExplain } from "../../lib/going.js";
import { catalog, mounted, setPopulation } from "../../lib/pages.js";
import { latest } from "../../lib/remote.js";
import { number } from "../../lib/format.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { axisPicker, isLog, logButton } from "../charts/axis_controls.js";
import { AXES, along, besides, weightFor } from "../charts/scale.js";
import { attemptsNote, chartsOf, shortName } from "../charts/script.js";
import { legend, seriesChart } from "../charts/series_chart.js";

const MOST_OFFERED = 400;

// The runs beyond the second, in the address.
const further = now => (now.more || "").split(",").filter(Boolean).map(decodeURIComponent);
const joined = names => names.map(encodeURIComponent).join(",") || null;

let call;
let root;
let shownFor = "";
let data = null;
const newest = latest();
const slot = () => root.querySelector(".rt-runs");

export function mount(element, server) {
  [root, call] = mounted("runs", element, server, { update });
  onWidth(slot(), () => data && draw());
}

function update(now, changed) {
  const other =
    catalog.runs.find(run => run.name === now.other && run.name !== now.run) ||
    catalog.runs.find(run => run.name !== now.run);
  if (!other) {
    shownFor = "";
    data = null;
    setPopulation("runs");
    return replace(
      slot(),
      notice(
        "info",
        "One run alone",
        "This project has no second run to lay over it. Log or import one to the same project, or pick another project.",
      ),
    );
  }
  if (now.other !== other.name) return state.set({ other: other.name }, { fill: true });
  const wanted = state.valuesOf(now, ["project", "run", "split", "other", "more", "charts"]);
  if (wanted !== shownFor) {
    shownFor = wanted;
    load(now);
  } else if (data && ["step", "smooth", "axis", "log"].some(key => changed.has(key))) draw();
  return undefined;
}

function load(now) {
  if (!data) replace(slot(), h("div.rt-loading", "Reading the runs…"));
  newest(
    call("several_runs", {
      ...state.placeOf(now),
      others: [now.other, ...further(now).filter(name => name !== now.other && name !== now.run)],
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
  const { style, wide } = besides(node.clientWidth, 380, 4);
  const names = data.runs.map(each => each.run);
  setPopulation(
    "runs",
    data.runs.map((each, at) => [at ? (at < data.runs.length - 1 ? ", " : " and ") : "", h("b", inert(each.run))]),
    " · numbers that the runs logged; rollouts and tokens seen are of all rollouts, from the ledger",
  );
  replace(
    node,
    head(now),
    legend(data.runs.map(each => ({ name: each.run }))),
    data.runs.map(each => attemptsNote(each.resumed_at, each.run)),
    data.shown.length
      ? h.each("div.rt-run-grid", { style }, data.shown, name => card(name, now, wide))
      : h("p.rt-empty", "None of them logged a number."),
    block(
      "section.rt-run-block#settings",
      "Settings that differ",
      number(data.settings.length),
      data.settings.length ? differences(data.settings, names) : h("p.rt-soft", "None."),
    ),
  );
  node.scrollTop = keep;
}

function head(now) {
  const step = now.step === undefined ? null : Number(now.step);
  const explain = patch => toExplain({ against: new URLSearchParams({ run: data.runs[1].run }).toString(), ...patch });
  return h(
    "div.rt-flip-pickers.rt-runs-head",
    h("b", inert(data.runs[0].run)),
    h("span.rt-soft", "and"),
    select(
      catalog.runs.filter(run => run.name !== now.run).map(run => [run.name, run.label]),
      now.other,
      other => state.set({ other }),
      { "aria-label": "The other run", testid: "other-run" },
    ),
    others(now),
    axisPicker(now, {
      rollouts: data.runs.flatMap(each => each.progress.rollouts || []),
      tokens: data.runs.flatMap(each => each.progress.tokens || []),
    }),
    button("explain one against the other", () => explain({ step: null }), {
      testid: "runs-explain",
      title: `All of ${data.runs[0].run} against all of ${data.runs[1].run}`,
    }),
    step !== null &&
      button(`explain at step ${number(step)}`, () => explain({ step }), { testid: "runs-explain-step" }),
    data.evaluations.length > 0 &&
      button("flips on shared prompts", () => state.set({ page: "flips", evals: null }), { testid: "runs-flips" }),
    more(),
  );
}

// The runs beyond the second, and one more.
function others(now) {
  const shown = further(now);
  const left = catalog.runs.filter(run => ![now.run, now.other, ...shown].includes(run.name));
  return [
    shown.map(name =>
      h(
        "span.rt-chip#further-run",
        inert(name),
        ghost("×", () => state.set({ more: joined(shown.filter(each => each !== name)) }), {
          "aria-label": `Without ${name}`,
        }),
      ),
    ),
    left.length > 0 &&
      select(
        [["", "+ run"], ...left.map(run => [run.name, run.label])],
        "",
        run => run && state.set({ more: joined([...shown, run]) }),
        { "aria-label": "One more run", testid: "one-more-run" },
      ),
  ];
}

function more() {
  const others = data.names.filter(name => !data.shown.includes(name));
  return select(
    [["", "another chart"], ...others.slice(0, MOST_OFFERED).map(name => [name, name])],
    "",
    name => name && state.set({ charts: [...data.shown, name].join(",") }, { fill: true }),
    { class: "rt-by", "aria-label": "Another chart", testid: "runs-more" },
  );
}

function card(name, now, wide) {
  const axis = now.axis || "step";
  const series = data.runs.map(each => {
    const found = each.series[name] || { steps: [], values: [] };
    return { name: each.run, ...found, x: along(axis, each.progress, found.steps) };
  });
  const values = series.flatMap(each => each.values);
  const missing = series.filter(each => !each.steps.length).map(each => each.name);
  const step = now.step === undefined ? null : Number(now.step);
  return h(
    "figure.rt-run-card#runs-card",
    { dataset: { metric: name } },
    h(
      "figcaption",
      h("span.rt-ellipsis", { title: name }, shortName(name, now.split)),
      logButton(now, name, values),
      missing.length ? h("span.rt-faint", inert(`not in ${missing.join(", ")}`)) : null,
    ),
    seriesChart(series, {
      width: wide,
      height: 130,
      step,
      weight: points => weightFor(now.smooth, points),
      log: isLog(now, name),
      xName: AXES[axis],
      label: `${name} of the runs over ${AXES[axis]}`,
      onStep: picked => state.set({ step: picked }),
    }),
  );
}

const setting = value => (value === null || value === undefined ? h("span.rt-faint", "not set") : inert(String(value)));

// The settings in which runs differ. rows: {key, values: one a run}; runs: their names.
export function differences(rows, runs) {
  return scrolling(
    "Settings that differ",
    table({ class: "rt-differences", testid: "differences" }, ["setting", runs.map(inert)], rows, row =>
      h.each("tr", h("th", inert(row.key)), row.values, value => h("td", setting(value))),
    ),
  );
}
