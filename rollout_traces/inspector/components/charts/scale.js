// From numbers to places on a chart: smoothing, ticks, axes. No drawing here.

import { number } from "../../lib/format.js";

// As many charts beside each other as there is room for: the style of their grid, and how wide each of them is drawn.
export function besides(width, least, most) {
  const columns = Math.max(1, Math.min(most, Math.floor(width / least)));
  const style = { "grid-template-columns": `repeat(${columns}, minmax(0, 1fr))` };
  return { style, wide: Math.max(Math.floor((width - 36 - (columns - 1) * 14) / columns) - 28, 100) };
}

// Lines of this many points and more are drawn as their mean, with the noise light behind it. On a shorter one the mean
// would draw one clean step as a slope over many.
export const MANY = 100;
const USUAL_WEIGHT = 0.7;

// How much to smooth: what was chosen, else a little where there are many points.
export function weightFor(chosen, points) {
  return chosen === undefined || chosen === null ? (points >= MANY ? USUAL_WEIGHT : 0) : Number(chosen) || 0;
}

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

const HIDDEN = 4;
const SEEN = 0.1;
const BEFORE = 5;

// Positions of values that lie more than four units of noise, and as far as is seen, from a smoothed line and from the
// values before them: what smoothing would hide, and not the values to which the line only comes back late. The unit is
// that of the values' differences from one to the next, by their median.
export function hiddenBySmoothing(values, line) {
  const finite = values.filter(Number.isFinite);
  const jumps = finite.slice(1).map((value, i) => Math.abs(value - finite[i]));
  const noise = (1.4826 * (median(jumps) ?? Infinity)) / Math.SQRT2;
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  if (same(low, high)) return [];
  const least = Math.max(HIDDEN * noise, SEEN * (high - low));
  const away = (i, from) => Math.abs(values[i] - from) > least;
  const before = i => median(values.slice(Math.max(0, i - BEFORE), i).filter(Number.isFinite)) ?? line[i];
  return [...values.keys()].filter(i => Number.isFinite(values[i]) && away(i, line[i]) && away(i, before(i)));
}

const median = values => values.toSorted((a, b) => a - b)[values.length >> 1];

// Whether two numbers are one but for rounding: sums of equal values differ in their last digit.
const same = (low, high) => !(high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high)));

// Round numbers in [low, high], two at least: one alone says nothing of the distance between two values.
export function ticks(low, high, wanted = 3) {
  if (same(low, high)) return [low];
  const rough = (high - low) / wanted;
  const size = 10 ** Math.floor(Math.log10(rough));
  const rising = [1, 2, 5, 10].map(m => m * size);
  const inside = s => 1 + Math.floor(high / s) - Math.ceil(low / s);
  const step = rising.slice(0, 1 + rising.findIndex(s => s >= rough)).findLast(s => inside(s) > 1);
  const out = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-6; v += step)
    out.push(Math.abs(v) < step * 1e-6 ? 0 : v);
  return out;
}

// The texts of ticks as show() gives them; with more digits where two of them would read the same, or one is no figure, as >99%.
export function tickTexts(at, show) {
  const texts = at.map(tick => show(tick));
  if (new Set(texts).size === texts.length && !texts.some(text => /^[<>]/.test(text))) return texts;
  const unit = texts.every(text => text.endsWith("%")) ? "%" : "";
  const scaled = unit ? at.map(tick => tick * 100) : at;
  const places = Math.ceil(-Math.log10(Math.abs(scaled[1] - scaled[0])) - 1e-6);
  const digits = { minimumFractionDigits: places, maximumFractionDigits: places };
  const exact = tick => tick.toLocaleString("en-US", digits).replace("-", "\u2212") + unit;
  return places > 0 && places <= 8 ? scaled.map(exact) : texts;
}

// Powers of ten in [low, high]; with few of them also 2 and 5 times.
export function logTicks(low, high) {
  const out = [];
  const many = Math.log10(high / low) > 2;
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    for (const m of many ? [1] : [1, 2, 5]) if (m * 10 ** e >= low && m * 10 ** e <= high) out.push(m * 10 ** e);
  }
  const stride = Math.ceil(out.length / 4);
  return out.filter((_, i) => i % stride === 0);
}

// The values of a series in two: those of the newest attempt, and those of steps that only an older one has.
export function parted({ steps, values, superseded = [] }) {
  const lost = new Set(superseded);
  return [
    values.map((value, i) => (lost.has(steps[i]) ? null : value)),
    values.map((value, i) => (lost.has(steps[i]) ? value : null)),
  ];
}

// Positions of values without a neighbour, which no line shows.
export function lone(values) {
  return [...values.keys()].filter(
    i => Number.isFinite(values[i]) && !Number.isFinite(values[i - 1]) && !Number.isFinite(values[i + 1]),
  );
}

// Points joined to a path; one that is unknown leaves a gap, it is not drawn as 0.
export function path(points) {
  let out = "";
  let pen = "M";
  for (const [x, y] of points) {
    if (!Number.isFinite(y) || !Number.isFinite(x)) {
      pen = "M";
      continue;
    }
    out += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  }
  return out;
}

// The vertical axis of all values: {y(value) in 0..1 from the bottom, ticks, log, dropped: values a log axis cannot show}.
export function valueAxis(values, { log = false, range = null } = {}) {
  const finite = values.filter(Number.isFinite);
  const positive = finite.filter(value => value > 0);
  if (log && positive.length) {
    let [low, high] = [Math.min(...positive), Math.max(...positive)];
    if (same(low, high)) {
      low /= 2;
      high *= 2;
    }
    const [from, to] = [Math.log10(low), Math.log10(high)];
    const margin = (to - from) * 0.06;
    return {
      log: true,
      y: v => (v > 0 ? (Math.log10(v) - from + margin) / (to - from + 2 * margin) : NaN),
      ticks: logTicks(low, high),
      dropped: finite.length - positive.length,
    };
  }
  let [low, high] = range || (finite.length ? [Math.min(...finite), Math.max(...finite)] : [0, 1]);
  const nonnegative = low >= 0;
  const marks = finite.length && same(low, high) ? [low] : null;
  if (same(low, high)) {
    low -= Math.abs(low) * 0.1 || 0.5;
    high += Math.abs(high) * 0.1 || 0.5;
  }
  const margin = (high - low) * 0.06;
  low -= margin;
  high += margin;
  if (nonnegative) low = Math.max(low, -margin);
  return {
    log: false,
    y: v => (Number.isFinite(v) ? (v - low) / (high - low) : NaN),
    ticks: marks || ticks(low, high),
    dropped: 0,
  };
}

export const AXES = { step: "steps", rollouts: "rollouts seen", tokens: "tokens sampled" };

// Where steps lie on the chosen horizontal axis. progress: {steps, rollouts, tokens} of the run, steps ascending;
// NaN before its first step and where it is unknown.
export function along(axis, progress, steps) {
  if (axis === undefined || axis === null || axis === "step" || !progress || !progress[axis]) return steps;
  let at = -1;
  return steps.map(step => {
    while (at + 1 < progress.steps.length && progress.steps[at + 1] <= step) at++;
    while (at >= 0 && progress.steps[at] > step) at--;
    return at < 0 ? NaN : (progress[axis][at] ?? NaN);
  });
}

// What a point says: `step 12: 0.4`, or of several series `step 12: a 0.4, b 0.5`.
export function readout(where, found, show) {
  const text = value => (show ? show(value) : number(value));
  return found.length === 1
    ? `${where}: ${text(found[0].value)}`
    : `${where}: ${found.map(each => `${each.name} ${text(each.value)}`).join(", ")}`;
}
