// The settings in which two runs differ, as a table.

import { h, table } from "../../lib/dom.js";
import { inert } from "../../lib/text.js";

const text = value =>
  value === null || value === undefined ? h("span", { class: "rt-faint" }, "not set") : inert(String(value));

export function differences(rows, a, b) {
  return h(
    "div",
    { class: "rt-table-scroll", tabindex: "0", role: "region", "aria-label": "Settings that differ" },
    table(
      { class: "rt-differences", testid: "differences" },
      [h("th", null, "setting"), h("th", null, inert(a)), h("th", null, inert(b))],
      rows.map(row =>
        h("tr", null, h("th", null, inert(row.key)), h("td", null, text(row.a)), h("td", null, text(row.b))),
      ),
    ),
  );
}
