// The settings in which runs differ, as a table.

import { h, scrolling, table } from "../../lib/dom.js";
import { inert } from "../../lib/text.js";

const text = value => (value === null || value === undefined ? h("span.rt-faint", "not set") : inert(String(value)));

// rows: {key, values: one a run}; runs: their names.
export function differences(rows, runs) {
  return scrolling(
    "Settings that differ",
    table(
      { class: "rt-differences", testid: "differences" },
      [h("th", "setting"), runs.map(run => h("th", inert(run)))],
      rows.map(row =>
        h(
          "tr",
          h("th", inert(row.key)),
          row.values.map(value => h("td", text(value))),
        ),
      ),
    ),
  );
}
