// One chart of one or several series: the raw points light, their mean over them, the current step marked.

import { h, svg } from "../../lib/dom.js";
import { compact, number } from "../../lib/format.js";
import { inert } from "../../lib/text.js";
import { AXES, hiddenBySmoothing, lone, parted, path, readout, smooth, tickTexts, valueAxis } from "./scale.js";

const HEIGHT = 92;
const MARGINS = { left: 46, right: 8, top: 8, bottom: 16 };
const DIGIT = 6;
const BARE = { left: 2, right: 2, top: 3, bottom: 3 };
const MOST_READ = 4;

// series: [{name, steps, values, x, superseded}], x: where each step lies, the steps themselves where it is not given; superseded: steps that only
// an older attempt of the run has, drawn pale and apart.
// options: {width, height, step, weight: how much to smooth, or a function of the number of points, log, range: [low, high] in place of the values' own, label, show(value),
// begun: steps at which something began, a thin line each; xName: what a place on the horizontal axis is called, bare: no axes, onStep(step, name)}
export function seriesChart(series, options) {
  const { width, height = HEIGHT, step = null, weight = 0, show, bare = false, onStep } = options;
  const drawn = series
    .map((each, colour) => ({ ...each, x: each.x || each.steps, colour }))
    .filter(each => each.values.some(Number.isFinite));
  const root = svg("svg.rt-chart-svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": options.label || "",
  });
  const places = drawn.flatMap(each => each.x.filter(Number.isFinite));
  if (!places.length) return root;
  const [first, last] = places.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
  const axis = valueAxis(
    drawn.flatMap(each => each.values),
    options,
  );
  const texts = bare ? [] : tickTexts(axis.ticks, show || compact);
  const pad = bare
    ? BARE
    : { ...MARGINS, left: Math.max(MARGINS.left, ...texts.map(text => 10 + DIGIT * text.length)) };
  const x = v => pad.left + (last > first ? (v - first) / (last - first) : 0.5) * (width - pad.left - pad.right);
  const y = v => pad.top + (1 - axis.y(v)) * (height - pad.top - pad.bottom);
  if (!bare) root.append(...frame({ axis, texts, x, y, first, last, width, height, pad, xName: options.xName }));
  const upright = (selector, at, ...inside) => {
    const place = placeOf(drawn, at);
    if (place === null) return;
    root.append(svg(selector, { x1: x(place), x2: x(place), y1: pad.top, y2: height - pad.bottom }, inside));
  };
  for (const begun of options.begun || [])
    upright("line.rt-begun", begun, svg("title", `something is wrong since step ${number(begun)}`));
  upright("line.rt-now", step);
  for (const each of drawn) {
    const own = typeof weight === "function" ? weight(each.steps.length) : weight;
    const [kept, before] = parted(each);
    const smoothed = smooth(kept, own);
    each.line = smoothed.map((value, i) => (Number.isFinite(value) ? value : before[i]));
    const style = { stroke: `var(--rt-series-${each.colour % 6})` };
    const points = values => path(each.x.map((v, i) => [x(v), y(values[i])]));
    if (own) root.append(svg("path.rt-line.rt-line-raw", { d: points(kept), style }));
    root.append(svg("path", { d: points(smoothed), class: `rt-line rt-dash-${each.colour % 4}`, style }));
    if (before.some(Number.isFinite))
      root.append(
        svg(
          "path.rt-line.rt-line-superseded",
          { d: points(before), style },
          svg("title", "steps of an earlier attempt, which the run was resumed behind"),
        ),
      );
    for (const i of own ? hiddenBySmoothing(kept, smoothed) : [])
      root.append(
        svg(
          "circle.rt-hidden-point",
          { cx: x(each.x[i]), cy: y(kept[i]), r: 2.4, style },
          svg(
            "title",
            `step ${number(each.steps[i])}: ${number(kept[i])}, more than four units of noise from the smoothed line`,
          ),
        ),
      );
    for (const i of lone(each.line))
      root.append(
        svg("circle", {
          cx: x(each.x[i]),
          cy: y(each.line[i]),
          r: each.steps.length === 1 ? 2.5 : 1.6,
          style: { fill: style.stroke },
        }),
      );
  }
  if (bare) return root;
  const point = clientX => {
    const box = root.getBoundingClientRect();
    return (
      first +
      (((clientX - box.left) * (width / box.width) - pad.left) / (width - pad.left - pad.right)) * (last - first)
    );
  };
  hovering(root, drawn, { x, y, width, height, pad, show, point, xName: options.xName });
  if (onStep) {
    root.addEventListener("click", event => {
      const found = nearest(drawn, point(event.clientX));
      onStep(found.steps[found.i], found.name);
    });
    steppable(root, drawn[0].steps, step, onStep);
  }
  return root;
}

// Of several series, which line is which.
export function legend(series) {
  return h.each("div.rt-chart-legend#legend", series, (each, i) =>
    h(
      "span",
      svg(
        "svg",
        { width: 22, height: 8, "aria-hidden": "true" },
        svg("line", {
          x1: 1,
          x2: 21,
          y1: 4,
          y2: 4,
          class: `rt-line rt-dash-${i % 4}`,
          style: { stroke: `var(--rt-series-${i % 6})` },
        }),
      ),
      inert(each.name),
    ),
  );
}

function frame({ axis, texts, x, y, first, last, width, height, pad, xName }) {
  const parts = axis.ticks.flatMap((tick, i) => [
    svg("line.rt-grid", { x1: pad.left, x2: width - pad.right, y1: y(tick), y2: y(tick) }),
    svg("text.rt-axis", { x: pad.left - 5, y: y(tick) + 3, "text-anchor": "end" }, texts[i]),
  ]);
  const said = [axis.log ? "log" : null, axis.dropped ? `${axis.dropped} not above 0` : null, xName || null]
    .filter(Boolean)
    .join(", ");
  const place = xName && xName !== AXES.step ? compact : number;
  return [
    ...parts,
    svg("text.rt-axis", { x: pad.left, y: height - 3 }, place(first)),
    said
      ? svg("text.rt-axis", { x: (pad.left + width - pad.right) / 2, y: height - 3, "text-anchor": "middle" }, said)
      : "",
    last > first ? svg("text.rt-axis", { x: width - pad.right, y: height - 3, "text-anchor": "end" }, place(last)) : "",
  ];
}

// Where a step lies: in the first series that has it.
function placeOf(drawn, step) {
  if (step === null || step === undefined) return null;
  for (const each of drawn) {
    const i = each.steps.indexOf(step);
    if (i >= 0 && Number.isFinite(each.x[i])) return each.x[i];
  }
  return null;
}

function nearestOf(each, wanted) {
  let best = -1;
  for (let i = 0; i < each.x.length; i++)
    if (
      Number.isFinite(each.values[i]) &&
      Number.isFinite(each.x[i]) &&
      (best < 0 || Math.abs(each.x[i] - wanted) < Math.abs(each.x[best] - wanted))
    )
      best = i;
  return best;
}

function nearest(drawn, wanted) {
  let found = null;
  for (const each of drawn) {
    const i = nearestOf(each, wanted);
    if (i >= 0 && (!found || Math.abs(each.x[i] - wanted) < found.off))
      found = { ...each, i, off: Math.abs(each.x[i] - wanted) };
  }
  return found;
}

function hovering(root, drawn, { x, y, width, height, pad, show, point, xName }) {
  const dots = drawn.map(each =>
    svg("circle", { r: 3, visibility: "hidden", style: { fill: `var(--rt-series-${each.colour % 6})` } }),
  );
  const text = svg("text.rt-readout", { y: 9, "text-anchor": "end", x: width - pad.right }, "");
  root.append(...dots, text);
  root.addEventListener("mousemove", event => {
    const wanted = point(event.clientX);
    const head = nearest(drawn, wanted);
    if (!head) return;
    const found = [];
    drawn.forEach((each, n) => {
      const i = nearestOf(each, head.x[head.i]);
      const there = i >= 0 && Math.abs(x(each.x[i]) - x(head.x[head.i])) < 8;
      dots[n].setAttribute("visibility", there ? "visible" : "hidden");
      if (!there) return;
      dots[n].setAttribute("cx", x(each.x[i]));
      dots[n].setAttribute("cy", y(each.values[i])); // the value that is told, not the smoothed line
      found.push({ name: each.name, value: each.values[i] });
    });
    const where =
      xName && xName !== AXES.step
        ? `step ${number(head.steps[head.i])}, ${compact(head.x[head.i])} ${xName}`
        : `step ${number(head.steps[head.i])}`;
    text.textContent = inert(readout(where, found.slice(0, MOST_READ), show));
    text.setAttribute("y", Math.min(9, height - 4));
  });
  root.addEventListener("mouseleave", () => {
    for (const dot of dots) dot.setAttribute("visibility", "hidden");
    text.textContent = "";
  });
}

// By keyboard: left and right go to the step before and after.
function steppable(root, steps, step, onStep) {
  root.setAttribute("tabindex", "0");
  root.setAttribute("role", "slider");
  root.setAttribute("aria-valuemin", steps[0]);
  root.setAttribute("aria-valuemax", steps.at(-1));
  root.setAttribute("aria-valuenow", step ?? steps.at(-1));
  root.addEventListener("keydown", event => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.stopPropagation();
    event.preventDefault();
    const here = steps.indexOf(step);
    onStep(steps[Math.min(Math.max((here < 0 ? steps.length - 1 : here) + by, 0), steps.length - 1)]);
  });
}

// One series. steps, values: arrays of one length; options as of seriesChart, and x and superseded.
export function lineChart(steps, values, options) {
  return seriesChart(
    [{ name: options.label || "", steps, values, x: options.x, superseded: options.superseded }],
    options,
  );
}
