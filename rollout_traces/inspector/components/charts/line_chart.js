// One small line chart: the raw points faint, the smoothed line over them, the current step marked.

import { svg } from "../../lib/dom.js";
import { compact, number } from "../../lib/format.js";

const HEIGHT = 92;
const AXES = { left: 40, right: 8, top: 8, bottom: 16 };
const BARE = { left: 2, right: 2, top: 3, bottom: 3 };

// Exponential smoothing without the bias of its start (as the trackers do it); weight 0 = off.
export function smooth(values, weight) {
  if (!weight) return values;
  let last = 0;
  let debias = 0;
  return values.map(value => {
    if (!Number.isFinite(value)) return value;
    last = last * weight + (1 - weight) * value;
    debias = debias * weight + (1 - weight);
    return last / debias;
  });
}

// Round numbers that cover [low, high].
export function ticks(low, high, wanted = 3) {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * size).find(s => s >= rough);
  const out = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-6; v += step) out.push(Math.abs(v) < step * 1e-6 ? 0 : v);
  return out;
}

// Positions of values without a neighbour, which no line shows.
export function lone(values) {
  return [...values.keys()].filter(i => Number.isFinite(values[i]) && !Number.isFinite(values[i - 1]) && !Number.isFinite(values[i + 1]));
}

// Points joined to a path; one that is unknown leaves a gap, it is not drawn as 0.
export function path(points) {
  let out = "";
  let pen = "M";
  for (const [x, y] of points) {
    if (!Number.isFinite(y)) { pen = "M"; continue; }
    out += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  }
  return out;
}

// steps, values: arrays of one length. options: {width, step, weight, onStep(step), label, show(value): as text, bare: no axes, range: [low, high] in place of the values' own}
export function lineChart(steps, values, options) {
  const { width, step, weight = 0, onStep, height = HEIGHT, show, bare = false } = options;
  const PAD = bare ? BARE : AXES;
  const finite = values.filter(Number.isFinite);
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "rt-chart-svg", role: "img", "aria-label": options.label || "" });
  if (!finite.length) return root;
  let [low, high] = options.range || [Math.min(...finite), Math.max(...finite)];
  const nonnegative = low >= 0;
  if (low === high) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
  const margin = (high - low) * 0.06;
  low -= margin; high += margin;
  if (nonnegative) low = Math.max(low, -margin);
  const first = steps[0];
  const last = steps[steps.length - 1];
  const x = s => PAD.left + (last > first ? (s - first) / (last - first) : 0.5) * (width - PAD.left - PAD.right);
  const y = v => (Number.isFinite(v) ? PAD.top + (1 - (v - low) / (high - low)) * (height - PAD.top - PAD.bottom) : NaN);
  for (const tick of bare ? [] : ticks(low, high)) {
    root.append(svg("line", { x1: PAD.left, x2: width - PAD.right, y1: y(tick), y2: y(tick), class: "rt-grid" }),
      svg("text", { x: PAD.left - 5, y: y(tick) + 3, class: "rt-axis", "text-anchor": "end" }, show ? show(tick) : compact(tick)));
  }
  if (!bare) root.append(svg("text", { x: PAD.left, y: height - 3, class: "rt-axis" }, number(first)), svg("text", { x: width - PAD.right, y: height - 3, class: "rt-axis", "text-anchor": "end" }, number(last)));
  if (step !== null && step !== undefined && step >= first && step <= last) root.append(svg("line", { x1: x(step), x2: x(step), y1: PAD.top, y2: height - PAD.bottom, class: "rt-now" }));
  const line = smooth(values, weight);
  if (weight) root.append(svg("path", { d: path(steps.map((s, i) => [x(s), y(values[i])])), class: "rt-line rt-line-raw" }));
  root.append(svg("path", { d: path(steps.map((s, i) => [x(s), y(line[i])])), class: "rt-line" }));
  for (const i of lone(line)) root.append(svg("circle", { cx: x(steps[i]), cy: y(line[i]), r: steps.length === 1 ? 2.5 : 1.6, class: "rt-point" }));
  if (bare) return root;
  const dot = svg("circle", { r: 3, class: "rt-point", visibility: "hidden" });
  const readout = svg("text", { class: "rt-readout", y: 9, "text-anchor": "end", x: width - PAD.right }, "");
  root.append(dot, readout);
  const at = event => {
    const box = root.getBoundingClientRect();
    const wanted = first + ((event.clientX - box.left) * (width / box.width) - PAD.left) / (width - PAD.left - PAD.right) * (last - first);
    let best = 0;
    for (let i = 1; i < steps.length; i++) if (Number.isFinite(values[i]) && Math.abs(steps[i] - wanted) < Math.abs(steps[best] - wanted)) best = i;
    return best;
  };
  root.addEventListener("mousemove", event => {
    const i = at(event);
    if (!Number.isFinite(line[i])) return;
    dot.setAttribute("cx", x(steps[i])); dot.setAttribute("cy", y(line[i])); dot.setAttribute("visibility", "visible");
    readout.textContent = `step ${number(steps[i])}: ${show ? show(values[i]) : number(values[i])}`;
  });
  root.addEventListener("mouseleave", () => { dot.setAttribute("visibility", "hidden"); readout.textContent = ""; });
  if (onStep) {
    root.addEventListener("click", event => onStep(steps[at(event)]));
    steppable(root, steps, step, onStep);
  }
  return root;
}

// By keyboard: left and right go to the step before and after.
function steppable(root, steps, step, onStep) {
  root.setAttribute("tabindex", "0");
  root.setAttribute("role", "slider");
  root.setAttribute("aria-valuemin", steps[0]);
  root.setAttribute("aria-valuemax", steps[steps.length - 1]);
  root.setAttribute("aria-valuenow", step ?? steps[steps.length - 1]);
  root.addEventListener("keydown", event => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.stopPropagation();
    event.preventDefault();
    const at = steps.indexOf(step);
    onStep(steps[Math.min(Math.max((at < 0 ? steps.length - 1 : at) + by, 0), steps.length - 1)]);
  });
}
