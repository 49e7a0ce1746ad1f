// Is the run well: every step over all its rollouts; each point opens its examples.

import { block, button, ghost, h, notice, onWidth, redrawn, replace, select, sideHead } from "../../lib/dom.js";
import { inUnit, number, percent, plural } from "../../lib/format.js";
import { usualLine } from "../../lib/flags.js";
import { toExplain, toKept, toRollout, toRows } from "../../lib/going.js";
import { kept, mounted, setPopulation } from "../../lib/pages.js";
import { latest } from "../../lib/remote.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { isLog, logButton } from "../charts/axis_controls.js";
import { lineChart } from "../charts/series_chart.js";
import { besides, weightFor } from "../charts/scale.js";
import { sampleCard } from "../samples/script.js";

const CELLS = 72;
// Steps with late rollouts that are named.
const MOST_LATE = 5;

let call;
let root;
let shownFor = "";
let data = null;
// Which measures are taken apart, and by what.
const apart = new Map();
const newest = latest();
const newestExamples = latest();
const part = selector => root.querySelector(selector);

export function mount(element, server) {
  [root, call] = mounted("health", element, server, { update, news: load });
  onWidth(part(".rt-health-main"), () => data && draw());
}

function update(now, changed) {
  const wanted = state.valuesOf(now, ["project", "run", "split"]);
  if (wanted !== shownFor) {
    shownFor = wanted;
    data = null;
    load(now);
  } else if (data && ["smooth", "step", "log"].some(key => changed.has(key))) draw();
  if (changed.has("flag") || changed.has("step")) examples(now);
}

function load(now) {
  if (!data) {
    setPopulation("health");
    replace(part(".rt-health-main"), h("div.rt-loading", "Reading the ledgers…"));
  }
  newest(
    call("health", state.placeOf(now)),
    answer => {
      data = answer;
      setPopulation(
        "health",
        kept(
          answer,
          " over all steps",
          answer.kept_only
            ? "figures are over these"
            : "figures are over all rollouts, from the ledger, unless they say otherwise",
        ),
      );
      draw();
    },
    error => replace(part(".rt-health-main"), notice("error", "Health could not be read", error.message)),
  );
}

// What was clicked stands in the address as `flag=<what>:<name>` beside the step.
function ask(what, name, step) {
  state.set({ flag: `${what}:${name}`, step });
}

function draw() {
  const now = state.get();
  const main = part(".rt-health-main");
  if (!data.steps.length) {
    replace(
      main,
      notice("info", "No ledger in this split", "Health reads the ledger: one row of every rollout, traced or not.", [
        "It is logged by default; ",
        h("code", "RolloutLogger(ledger=True)"),
        " keeps it, also with a cap of 0.",
      ]),
    );
    return;
  }
  const keep = main.scrollTop;
  const { style, wide } = besides(main.clientWidth, 300, 5);
  const step = now.step === undefined ? null : Number(now.step);
  const share = `share of ${data.kept_only ? "the kept" : "all"} rollouts`;
  redrawn(main, () =>
    replace(
      main,
      h.each("div.rt-health-grid", { style }, data.measures, measure =>
        card(measure, step, wide, weightFor(now.smooth, data.steps.length)),
      ),
      late(),
      data.usual.length ? h("p.rt-soft.rt-usual#usual-flags", inert(usualLine(data.usual))) : null,
      heat(
        "Flags",
        `worst first; ${share}, stronger for more; ~ needs text${data.kept_only ? "" : " and is estimated from those kept at random"}. A name lists its rollouts`,
        "flags",
        data.flags,
        step,
      ),
      heat("Discarded, by reason", share, "discards", data.discards, step),
      heat("Tied groups, by what they have in common", "share of the step’s groups", "ties", data.ties, step),
      switchedOff(),
      data.kept_only ? null : counters(),
    ),
  );
  main.scrollTop = keep;
}

// What came late is in no logged measure.
function late() {
  const steps = Object.entries(data.late);
  if (!steps.length) return null;
  const said = steps.slice(-MOST_LATE).map(([step, count]) => `${plural(count, "rollout")} of step ${number(+step)}`);
  const more = steps.length > MOST_LATE ? `, and of ${plural(steps.length - MOST_LATE, "step")} before` : "";
  return h(
    "p.rt-soft.rt-late#late",
    `Came late, counted in flags and reasons and in no logged measure: ${said.join(", ")}${more}.`,
  );
}

function card(measure, step, chartWidth, weight) {
  const now = state.get();
  const at = step === null ? data.steps.length - 1 : data.steps.indexOf(step);
  return h(
    "figure.rt-health-card#health-card",
    { dataset: { measure: measure.key }, title: measure.meaning },
    h(
      "figcaption",
      h("span", measure.title),
      logButton(now, measure.key, measure.values, measure.title),
      byPicker(measure),
      h("b", inUnit(measure.unit, measure.values[at >= 0 ? at : measure.values.length - 1])),
    ),
    apart.has(measure.key)
      ? parts(measure, step, chartWidth, weight)
      : lineChart(data.steps, measure.values, {
          width: chartWidth,
          height: 84,
          step,
          weight,
          log: isLog(now, measure.key),
          onStep: picked => ask("measure", measure.key, picked),
          label: measure.title,
          show: value => inUnit(measure.unit, value),
        }),
  );
}

function byPicker(measure) {
  if (!data.by.length) return null;
  const chosen = apart.get(measure.key) || "";
  return select(
    [["", "by …"], ...data.by.map(name => [name, `by ${name.replaceAll("_", " ")}`])],
    chosen,
    name => {
      if (name) apart.set(measure.key, name);
      else apart.delete(measure.key);
      draw();
    },
    { class: "rt-by", "aria-label": `${measure.title} by`, testid: "by" },
  );
}

// One small line for each of the most frequent values, all on one scale.
function parts(measure, step, chartWidth, weight) {
  const slot = h("div.rt-parts#parts", h("span.rt-faint", "…"));
  call("breakdown", { ...state.placeOf(state.get()), name: measure.key, by: apart.get(measure.key) }).then(
    answer => {
      const all = answer.series.flatMap(([, values]) => values).filter(Number.isFinite);
      const range = all.length ? [Math.min(...all), Math.max(...all)] : null;
      replace(
        slot,
        answer.series.length
          ? answer.series.map(([value, values]) =>
              h(
                "div.rt-part",
                h("span.rt-ellipsis", { title: String(value) }, inert(String(value))),
                lineChart(answer.steps, values, {
                  width: Math.max(chartWidth - 130, 60),
                  height: 26,
                  step,
                  weight,
                  range,
                  bare: true,
                  label: `${measure.title}, ${value}`,
                }),
                h("b", inUnit(measure.unit, values[step === null ? values.length - 1 : answer.steps.indexOf(step)])),
              ),
            )
          : h("span.rt-faint", "not logged"),
      );
    },
    error => replace(slot, h("span.rt-faint", error.message)),
  );
  return slot;
}

// Steps in at most CELLS columns; a column shows the largest of its steps and opens that one.
function bins({ values, counts }) {
  const size = Math.ceil(data.steps.length / CELLS);
  const out = [];
  for (let at = 0; at < data.steps.length; at += size) {
    let best = at;
    for (let i = at; i < Math.min(at + size, data.steps.length); i++)
      if (values[i] > values[best] || (values[i] === values[best] && counts[i] > counts[best])) best = i;
    out.push({
      step: data.steps[best],
      value: values[best],
      count: counts[best],
      from: data.steps[at],
      to: data.steps[Math.min(at + size, data.steps.length) - 1],
    });
  }
  return out;
}

function heat(title, meaning, what, rows, step) {
  if (!rows.length) return null;
  const top = Math.max(...rows.flatMap(row => row.values), 1e-9);
  return block(
    "section.rt-heat",
    title,
    meaning,
    h(
      "div.rt-heat-rows",
      rows.slice(0, 30).map(row => {
        const cells = bins(row);
        return h(
          "div.rt-heat-row",
          heatName(row, what),
          h.each("div.rt-heat-cells", cells, cell =>
            h("button", {
              "aria-label": `${row.name} at step ${cell.step}: ${percent(cell.value)}`,
              title: `step ${number(cell.step)}: ${row.estimated ? "about " : ""}${percent(cell.value)}, seen on ${plural(cell.count, what === "ties" ? "group" : "rollout")}`,
              class: step !== null && cell.from <= step && step <= cell.to ? "rt-here" : "",
              disabled: !cell.count,
              style: { "--heat": `${cell.count ? Math.round(10 + 90 * Math.sqrt(cell.value / top)) : 0}%` },
              onclick: () => ask(what, row.name, cell.step),
            }),
          ),
          h(
            "b",
            { title: "mean over the steps" },
            percent(row.values.reduce((sum, value) => sum + value, 0) / row.values.length),
          ),
        );
      }),
      axis(bins(rows[0]).length),
    ),
  );
}

// The name lists every kept rollout of the run that carries it.
function heatName(row, what) {
  const severity = data.severities[row.name];
  const label = [
    what === "flags" && severity ? h("i", { class: `rt-sev-mark rt-sev-${severity}`, "aria-hidden": "true" }) : null,
    row.name.replaceAll("_", " "),
    row.estimated ? " ~" : "",
  ];
  const title = row.estimated
    ? `${row.name}: needs text, so its share is estimated from the rollouts kept at random`
    : row.name;
  const where = { flags: `flags has '${row.name}'`, discards: `discard_reason = '${row.name}'` }[what];
  if (!where) return h("span.rt-heat-name.rt-ellipsis", { title }, label);
  return h(
    "button#heat-name",
    {
      class: `rt-heat-name rt-ellipsis rt-sev-${severity || "none"}`,
      title: `${title}. Lists its rollouts of all steps`,
      onclick: () => toKept(where, { scope: "all", flag: null, group: null, sample: null, id: null }),
    },
    label,
  );
}

// Under the cells: the steps they begin and end with.
function axis(cells) {
  const [first, last] = [data.steps[0], data.steps.at(-1)];
  return h(
    "div.rt-heat-row.rt-heat-axis",
    h(
      "span",
      cells < data.steps.length ? `largest of ${number(Math.ceil(data.steps.length / CELLS))} steps a cell` : "",
    ),
    h(
      "div.rt-heat-cells",
      h(
        "span",
        { style: { "max-width": `${cells * 42 - 2}px` } },
        h("span", `step ${number(first)}`),
        last > first && h("span", number(last)),
      ),
    ),
    h("span", "mean"),
  );
}

// What this split does not compute, and what its batches lack for it.
function switchedOff() {
  const entries = Object.entries(data.off).filter(([, text]) => text);
  if (!entries.length) return null;
  return block(
    "section.rt-heat#switched-off",
    "Not computed",
    "and what is missing for it",
    entries.map(([what, text]) => h("p.rt-soft", h("b", `${what}: `), text)),
  );
}

function counters() {
  const frame = (said, inside) => block("section.rt-heat#counters", "The logger’s own counters", said, inside);
  if (data.counters === null)
    return frame("are kept on the machine that trains; a server does not have them. There: rollout-traces doctor");
  const entries = Object.entries(data.counters);
  if (!entries.length)
    return frame(
      "are not on this machine: the run was logged elsewhere, or its spool was removed after everything was stored",
    );
  return frame("what was handed over, stored and left out, from the spool on this machine", [
    data.stored && h("p.rt-soft", data.stored),
    h.each("div.rt-facts", entries, ([name, value]) =>
      h("div.rt-fact", h("span.rt-label", name.replaceAll("_", " ")), h("span.rt-fact-value", number(value))),
    ),
  ]);
}

function examples(now) {
  const side = part(".rt-health-side");
  root.querySelector(".rt-health").classList.toggle("rt-with-side", Boolean(now.flag && now.step !== undefined));
  if (!now.flag || now.step === undefined) return replace(side);
  const [what, ...rest] = now.flag.split(":");
  const name = rest.join(":");
  return newestExamples(
    call("examples", { ...state.placeOf(now), what, name, step: Number(now.step) }),
    answer => {
      const title =
        what === "measure"
          ? data?.measures.find(measure => measure.key === name)?.title || name
          : name.replaceAll("_", " ");
      const none = { flag: null, group: null, sample: null, id: null };
      replace(
        side,
        sideHead(
          `${title} at step ${number(Number(now.step))}`,
          ghost("close", () => state.set({ flag: null })),
        ),
        h(
          "p.rt-soft",
          answer.n_rows === null
            ? `${plural(answer.n_matched, "kept rollout")}; those that were not kept were not read for it.`
            : `${plural(answer.n_rows, "rollout")} of ${number(answer.population.n_rows)}, ${number(answer.n_matched)} of them kept as traces.`,
        ),
        answer.n_matched
          ? h.each("div.rt-example-list#examples", answer.samples, each =>
              sampleCard(each, {
                range: answer.range,
                severities: answer.severities,
                open: picked => toRollout(picked, { flag: null }),
              }),
            )
          : h("p.rt-empty", "None of them was kept as a trace. Explore, all rows, shows their numbers."),
        h(
          "div.rt-example-tools",
          button("list under Rollouts", () => toKept(answer.where, { ...none, sort: answer.order }), {
            testid: "examples-open",
          }),
          button(`explain step ${number(Number(now.step))}`, () => toExplain(), {
            title: "This step against the ten before it",
            testid: "cell-explain",
          }),
          answer.where &&
            button("explain these", () => toExplain({ where: answer.where, against: "rest=1" }), {
              title: "These rollouts against the others of the step",
              testid: "cell-explain-these",
            }),
          button("all rows under Explore", () =>
            toRows([answer.where, `step = ${now.step}`].filter(Boolean).join(" and "), {
              flag: null,
              sort: answer.order,
            }),
          ),
        ),
      );
    },
    error => replace(side, notice("error", "The examples could not be read", error.message)),
  );
}
