// The charts beside the rollout: the split's metrics over the steps, a click goes to the step.

import { ghost, h, notice, replace } from "../../lib/dom.js";
import { number, seconds } from "../../lib/format.js";
import { keep, recalled } from "../../lib/kept.js";
import { isStatic } from "../../lib/share.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { goTo } from "../step_pager/script.js";
import { axisPicker, isLog, logButton } from "./axis_controls.js";
import { AXES, along, weightFor } from "./scale.js";
import { legend, seriesChart } from "./series_chart.js";

const MOST_OFFERED = 400;

export function shortName(name, split) {
  return name.startsWith(`${split}/`) ? name.slice(split.length + 1) : name;
}

// A chart is the names of its series; charts are joined by commas in the address, the series of one by bars.
export function chartsOf(text) {
  return (text || "")
    .split(",")
    .map(chart => chart.split("|").filter(Boolean))
    .filter(chart => chart.length);
}

// The charts chosen for a project, remembered; the address has the last word.
export function rememberedCharts(project) {
  try {
    return JSON.parse(recalled(`rt-charts:${project}`) || "[]").filter(name => typeof name === "string");
  } catch {
    return [];
  }
}

function choose(charts) {
  const entries = charts.filter(chart => chart.length).map(chart => chart.join("|"));
  keep(`rt-charts:${state.get().project}`, JSON.stringify(entries));
  state.set({ charts: entries.join(",") || null }, { fill: true });
}

// What to draw: the charts asked for, of the series that there are; a chart each where nothing was asked for.
export function drawnCharts(wanted, shown, series) {
  const asked = wanted.map(chart => chart.filter(name => series[name])).filter(chart => chart.length);
  return asked.length ? asked : shown.filter(name => series[name]).map(name => [name]);
}

// That a run was resumed, and what is shown of it; named where there are several.
export function attemptsNote(resumedAt, run = null) {
  if (!resumedAt.length) return null;
  return h(
    "p.rt-faint#attempts",
    run === null ? "Resumed" : [inert(run), " was resumed"],
    ` at step ${resumedAt.map(number).join(", ")}: each step shows its newest attempt; dotted, what only an earlier one has.`,
  );
}

const NOTHING = { names: [], shown: [], series: {}, timings: {}, progress: null, resumedAt: [], isKnown: false };

export class Charts {
  constructor(root) {
    Object.assign(this, { ...NOTHING, root, choosing: false, query: "" });
    new ResizeObserver(() => this.draw()).observe(root);
  }

  // names: every scalar of the run; shown: those with a series here; timings: seconds by name and step; progress:
  // rollouts and tokens by step.
  // resumed_at: steps at which the run was resumed.
  setData({ names, shown, series, timings = {}, progress = null, resumed_at = [] }) {
    Object.assign(this, { names, shown, series, timings, progress, resumedAt: resumed_at, isKnown: true });
    this.draw();
  }

  // Nothing is known: no run was read.
  clear() {
    Object.assign(this, NOTHING);
    this.draw();
  }

  fail(error) {
    this.setData(NOTHING);
    this.list.append(notice("error", "The metrics could not be read", error.message));
  }

  draw() {
    const now = state.get();
    const { names } = this;
    const chosen = drawnCharts(
      now.charts ? chartsOf(now.charts) : chartsOf(rememberedCharts(now.project).join(",")),
      this.shown,
      this.series,
    );
    const longest = Math.max(0, ...chosen.flat().map(name => this.series[name].steps.length));
    const weight = weightFor(now.smooth, longest);
    const wide = this.root.clientWidth > 480;
    const width = Math.max(wide ? (this.root.clientWidth - 42) / 2 : this.root.clientWidth - 28, 160);
    const frame = `${names.length} ${this.choosing}`;
    const inUse = [".rt-charts-smooth input", ".rt-chooser .rt-input", ".rt-chooser-list input"].find(each =>
      this.root.querySelector(`${each}:focus`),
    );
    if (inUse && this.frame === frame) return this.drawCharts(now, chosen, width, weight);
    this.frame = frame;
    this.list = h("div", { class: "rt-charts-list" + (wide ? " rt-two" : "") });
    replace(
      this.root,
      h(
        "div.rt-charts-head",
        h("h2", "Charts"),
        axisPicker(now, this.progress),
        h(
          "label.rt-charts-smooth",
          { title: "Smoothing" },
          "smooth",
          h("input#smoothing", {
            type: "range",
            min: 0,
            max: 0.95,
            step: 0.05,
            value: weight,
            "aria-label": "Smoothing",
            oninput: event => state.set({ smooth: Number(event.target.value) }, { fill: true }),
          }),
        ),
        now.step !== undefined &&
          !isStatic() &&
          ghost("explain", () => state.set({ page: "explain", a: null, b: null, against: null }), {
            title: `What changed at step ${now.step} (7)`,
            testid: "charts-explain",
          }),
        ghost("choose", () => this.choose(), { "aria-pressed": String(this.choosing), testid: "charts-choose" }),
      ),
      this.choosing ? this.chooser(names, chosen) : null,
      this.list,
    );
    if (inUse) this.root.querySelector(inUse)?.focus();
    return this.drawCharts(now, chosen, width, weight);
  }

  choose() {
    this.choosing = !this.choosing;
    this.draw();
    this.root.querySelector(".rt-chooser .rt-input")?.focus();
  }

  drawCharts(now, chosen, width, weight) {
    if (!chosen.length)
      return replace(this.list, this.isKnown && h("p.rt-empty", "No scalars were logged in this run yet."));
    const axis = now.axis || "step";
    return replace(
      this.list,
      chosen.map((chart, nth) => {
        const [name] = chart;
        const series = chart.map(each => ({
          name: shortName(each, now.split),
          ...this.series[each],
          x: along(axis, this.progress, this.series[each].steps),
        }));
        const at = series[0].steps.indexOf(Number(now.step));
        const title = series.map(each => each.name).join(", ");
        const values = series.flatMap(each => each.values);
        return h(
          "figure.rt-chart#chart",
          { dataset: { metric: name } },
          h(
            "figcaption",
            h("span.rt-ellipsis", { title: chart.join(", ") }, title),
            logButton(now, name, values, title),
            this.withPicker(chosen, nth),
            h("b", at >= 0 && chart.length === 1 ? number(series[0].values[at]) : ""),
          ),
          seriesChart(series, {
            width,
            height: chart.length > 1 ? 130 : undefined,
            step: now.step === undefined ? null : Number(now.step),
            weight: points => weightFor(now.smooth, points),
            log: isLog(now, name),
            xName: axis === "step" ? null : AXES[axis],
            onStep: goTo,
            label: `${title} over ${AXES[axis] || "steps"}`,
          }),
          chart.length > 1 && legend(series),
        );
      }),
      this.whereTimeWent(now),
      attemptsNote(this.resumedAt),
    );
  }

  // Another series into the same chart, or one of its own out of it. The names are listed when it is first used.
  withPicker(chosen, nth) {
    const chart = chosen[nth];
    const list = event => {
      const node = event.currentTarget;
      if (node.options.length > 1) return;
      const others = this.names.filter(name => !chart.includes(name)).slice(0, MOST_OFFERED);
      node.append(
        ...chart.slice(1).map(name => h("option", { value: name }, `without ${name}`)),
        ...others.map(name => h("option", { value: name }, name)),
      );
    };
    return h(
      "select.rt-by.rt-with#chart-with",
      {
        "aria-label": `Another series in the chart of ${chart[0]}`,
        onfocus: list,
        onpointerdown: list,
        onchange: event => {
          const name = event.target.value;
          choose(
            chosen.map((each, i) =>
              i !== nth ? each : each.includes(name) ? each.filter(one => one !== name) : [...each, name],
            ),
          );
        },
      },
      h("option", { value: "", selected: true }, "with …"),
    );
  }

  whereTimeWent(now) {
    const step = Number(now.step);
    const spent = Object.entries(this.timings)
      .map(([name, { steps, values }]) => [name, values[steps.indexOf(step)]])
      .filter(([, value]) => value > 0)
      .sort((a, b) => b[1] - a[1]);
    if (!spent.length) return null;
    const top = spent[0][1];
    return h.each(
      "section.rt-timings#timings",
      h("h2", `Where the time went at step ${number(step)}`),
      spent.slice(0, 12),
      ([name, value]) =>
        h(
          "div.rt-timing",
          h("span.rt-ellipsis", { title: name }, name.replace(/^(time|timeperf)\//, "")),
          h("span.rt-bar", h("i", { style: { width: `${(value / top) * 100}%`, background: "var(--rt-accent)" } })),
          h("b", seconds(value)),
        ),
    );
  }

  chooser(names, chosen) {
    const list = h("div.rt-chooser-list.rt-scroll");
    const drawn = chosen.flat();
    const listed = [...drawn, ...names.filter(name => !drawn.includes(name))];
    const fill = () =>
      replace(
        list,
        listed
          .filter(name => name.includes(this.query))
          .slice(0, 300)
          .map(name =>
            h(
              "label",
              h("input", {
                type: "checkbox",
                checked: drawn.includes(name),
                onchange: event =>
                  choose(
                    event.target.checked
                      ? [...chosen, [name]]
                      : chosen.map(chart => chart.filter(each => each !== name)),
                  ),
              }),
              h("span.rt-ellipsis", { title: name }, name),
            ),
          ),
      );
    fill();
    return h(
      "div.rt-chooser",
      h("input.rt-input", {
        placeholder: `search ${names.length} metrics`,
        value: this.query,
        oninput: event => {
          this.query = event.target.value;
          if (event.target.isConnected) fill();
          else this.draw();
        },
      }),
      list,
      ghost("the usual ones", () => choose([])),
    );
  }
}
