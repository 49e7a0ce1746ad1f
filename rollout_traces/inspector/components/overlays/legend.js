// What the colours mean, with the range they span.

import { h } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { LEVELS } from "./registry.js";

export function legend(painted) {
  const { overlay, domain, bands } = painted;
  const name = h("span.rt-legend-meaning", overlay.meaning);
  if (overlay.kind === "mask")
    return h("div.rt-legend#legend", swatch("m1", overlay.on), swatch("m0", overlay.off), name);
  if (overlay.kind === "bands") {
    return h(
      "div.rt-legend#legend",
      [...bands].slice(0, 12).map(([value, band]) => swatch(`b${band}`, overlay.names?.[value] ?? number(value))),
      swatch("m0", "not sampled"),
      name,
    );
  }
  if (!painted.values.some(value => value !== 0 && !Number.isNaN(value)))
    return h("div.rt-legend#legend", h("b", "0 at every token"), name);
  const steps =
    overlay.kind === "diverging"
      ? Array.from({ length: 2 * LEVELS + 1 }, (_, i) => (i < LEVELS ? `n${LEVELS - i}` : `p${i - LEVELS}`))
      : Array.from({ length: LEVELS + 1 }, (_, i) => `s${overlay.low ? LEVELS - i : i}`);
  const colours = steps.map(step => h("i", { class: `rt-tok ${step}` }));
  const middle = overlay.kind === "diverging" ? h("span.rt-legend-middle", number((domain[0] + domain[1]) / 2)) : null;
  return h(
    "div.rt-legend#legend",
    h("span.rt-mono", "≤ ".repeat(overlay.kind === "diverging" || overlay.low), number(domain[0])),
    h("span.rt-legend-scale", colours, middle),
    h("span.rt-mono", overlay.low ? "" : "≥ ", number(domain[1]), overlay.unit ? ` ${overlay.unit}` : ""),
    name,
  );
}

function swatch(level, label) {
  return h("span.rt-swatch", h("i", { class: `rt-tok ${level}` }, "ab"), label);
}
