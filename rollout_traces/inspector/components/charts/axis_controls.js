// What a reader chooses about charts: what their horizontal axis counts, and which have a log axis.

import { button, select } from "../../lib/dom.js";
import * as state from "../../lib/state.js";
import { AXES } from "./scale.js";

// progress: of the run; without tokens they are not offered.
export function axisPicker(now, progress) {
  const known = axis => axis === "step" || progress?.[axis]?.some(Number.isFinite);
  return select(
    Object.entries(AXES)
      .filter(([axis]) => known(axis))
      .map(([axis, name]) => [axis, `by ${name}`]),
    now.axis || "step",
    axis => state.set({ axis: axis === "step" ? null : axis }, { fill: true }),
    { class: "rt-by", "aria-label": "Horizontal axis", testid: "axis" },
  );
}

export function isLog(now, key) {
  return (now.log || "").split(",").includes(key);
}

// Offered where a value is above 0.
export function logButton(now, key, values, title = key) {
  if (!values.some(value => value > 0)) return null;
  const on = isLog(now, key);
  return button(
    "log",
    () => {
      const rest = (now.log || "").split(",").filter(name => name && name !== key);
      state.set({ log: (on ? rest : [...rest, key]).join(",") || null }, { fill: true });
    },
    {
      class: "rt-log",
      "aria-pressed": String(on),
      title: "Logarithmic axis",
      "aria-label": `log axis of ${title}`,
      testid: "log",
    },
  );
}
