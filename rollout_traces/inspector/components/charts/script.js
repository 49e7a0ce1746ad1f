// The charts beside the rollout: the split's metrics over the steps, a click goes to the step.

import { button, h, notice, replace } from "../../lib/dom.js";
import { number, seconds } from "../../lib/format.js";
import * as state from "../../lib/state.js";
import { goTo } from "../step_pager/script.js";
import { lineChart } from "./line_chart.js";

// Lines of this many points and more are drawn as their mean, with the noise light behind it.
const MANY = 24;
const USUAL_WEIGHT = 0.7;

export function shortName(name, split) {
  return name.startsWith(`${split}/`) ? name.slice(split.length + 1) : name;
}

// The charts chosen for a project, remembered; the address has the last word.
export function rememberedCharts(project) {
  try { return JSON.parse(localStorage.getItem(`rt-charts:${project}`) || "[]").filter(name => typeof name === "string"); } catch { return []; }
}

function choose(names) {
  try { localStorage.setItem(`rt-charts:${state.get().project}`, JSON.stringify(names)); } catch { /* the address keeps it */ }
  state.set({ charts: names.join(",") || null }, { fill: true });
}

export class Charts {
  constructor(root) {
    this.root = root;
    this.names = [];
    this.shown = [];
    this.series = {};
    this.timings = {};
    this.choosing = false;
    this.query = "";
    new ResizeObserver(() => this.draw()).observe(root);
  }

  // names: every scalar of the run; shown: those with a series here; timings: seconds by name and step.
  setData({ names, shown, series, timings = {} }) {
    Object.assign(this, { names, shown, series, timings });
    this.draw();
  }

  fail(error) {
    this.setData({ names: [], shown: [], series: {} });
    this.list.append(notice("error", "The metrics could not be read", error.message));
  }

  draw() {
    const now = state.get();
    const { names } = this;
    const chosen = this.shown.filter(name => this.series[name]);
    const longest = Math.max(0, ...chosen.map(name => this.series[name].steps.length));
    const weight = now.smooth === undefined ? (longest >= MANY ? USUAL_WEIGHT : 0) : Number(now.smooth) || 0;
    const wide = this.root.clientWidth > 480;
    const width = Math.max((wide ? (this.root.clientWidth - 42) / 2 : this.root.clientWidth - 28), 160);
    const frame = `${names.length} ${this.choosing}`;
    const inUse = this.root.contains(document.activeElement) && document.activeElement.matches("input");
    if (inUse && this.frame === frame) return this.drawCharts(now, chosen, width, weight);
    this.frame = frame;
    this.list = h("div", { class: "rt-charts-list" + (wide ? " rt-two" : "") });
    replace(this.root,
      h("div", { class: "rt-charts-head" }, h("h2", null, "Charts"),
        h("label", { class: "rt-charts-smooth", title: "Smoothing" }, "smooth", h("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: weight, "aria-label": "Smoothing", testid: "smoothing", oninput: event => state.set({ smooth: Number(event.target.value) }, { fill: true }) })),
        button("choose", () => this.choose(), { class: "rt-ghost", "aria-pressed": String(this.choosing), testid: "charts-choose" })),
      this.choosing ? this.chooser(names, chosen) : null,
      this.list);
    return this.drawCharts(now, chosen, width, weight);
  }

  choose() {
    this.choosing = !this.choosing;
    this.draw();
    this.root.querySelector(".rt-chooser .rt-input")?.focus();
  }

  drawCharts(now, chosen, width, weight) {
    if (!chosen.length) return replace(this.list, h("p", { class: "rt-empty" }, "No scalars were logged in this run yet."));
    return replace(this.list, chosen.map(name => {
      const { steps, values } = this.series[name];
      const at = steps.indexOf(Number(now.step));
      return h("figure", { class: "rt-chart", dataset: { metric: name } },
        h("figcaption", null, h("span", { class: "rt-ellipsis", title: name }, shortName(name, now.split)), h("b", null, at >= 0 ? number(values[at]) : "")),
        lineChart(steps, values, { width, step: now.step === undefined ? null : Number(now.step), weight, onStep: goTo, label: `${name} over the steps` }));
    }), this.whereTimeWent(now));
  }

  whereTimeWent(now) {
    const step = Number(now.step);
    const spent = Object.entries(this.timings).map(([name, { steps, values }]) => [name, values[steps.indexOf(step)]]).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
    if (!spent.length) return null;
    const top = spent[0][1];
    return h("section", { class: "rt-timings", testid: "timings" }, h("h2", null, `Where the time went at step ${number(step)}`), spent.slice(0, 12).map(([name, value]) => h("div", { class: "rt-timing" },
      h("span", { class: "rt-ellipsis", title: name }, name.replace(/^(time|timeperf)\//, "")), h("span", { class: "rt-bar" }, h("i", { style: { width: `${(value / top) * 100}%`, background: "var(--rt-accent)" } })), h("b", null, seconds(value)))));
  }

  chooser(names, chosen) {
    const list = h("div", { class: "rt-chooser-list rt-scroll" });
    const listed = [...chosen, ...names.filter(name => !chosen.includes(name))];
    const fill = () => replace(list, listed.filter(name => name.includes(this.query)).slice(0, 300).map(name => h("label", null,
      h("input", { type: "checkbox", checked: chosen.includes(name), onchange: event => {
        const next = event.target.checked ? [...this.shown, name] : this.shown.filter(each => each !== name);
        choose(next);
      } }), h("span", { class: "rt-ellipsis", title: name }, name))));
    fill();
    return h("div", { class: "rt-chooser" }, h("input", { class: "rt-input", placeholder: `search ${names.length} metrics`, value: this.query, oninput: event => { this.query = event.target.value; fill(); } }), list,
      button("the usual ones", () => choose([]), { class: "rt-ghost" }));
  }
}
