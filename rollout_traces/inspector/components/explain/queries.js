// The figures of a sentence, computed again by the query that gave them: shown on demand, with the statement.

import { button, copyButton, h, replace, table } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { isStatic } from "../../lib/share.js";
import { inert } from "../../lib/text.js";

const MOST_SHOWN = 30;

// slot: where the answer is drawn; ask() -> {queries: [{sql, columns, rows, n_rows}]}. Null where there is no server.
export function queries(slot, ask) {
  if (isStatic()) return null;
  let shown = false;
  const toggle = button(
    "figures",
    async () => {
      shown = !shown;
      toggle.setAttribute("aria-expanded", String(shown));
      if (!shown) return replace(slot);
      replace(slot, h("p", { class: "rt-faint" }, "Computing…"));
      try {
        const answer = await ask();
        if (shown) replace(slot, answer.queries.map(drawn));
      } catch (error) {
        replace(slot, h("p", { class: "rt-faint", role: "alert" }, error.message));
      }
      return undefined;
    },
    {
      class: "rt-ghost",
      "aria-expanded": "false",
      title: "The query that gives these figures, and its answer",
      testid: "figures",
    },
  );
  return toggle;
}

function drawn({ sql, columns, rows, n_rows }) {
  const sides = columns.indexOf("side");
  const cell = (value, at) =>
    h(
      "td",
      null,
      at === sides
        ? value
          ? "B"
          : "A"
        : value === null
          ? "–"
          : typeof value === "number"
            ? number(value, 6)
            : inert(String(value)),
    );
  return h(
    "div",
    { class: "rt-query", testid: "query" },
    h(
      "div",
      { class: "rt-table-scroll", tabindex: "0", role: "region", "aria-label": "The query's answer" },
      table(
        null,
        columns.map(name => h("th", null, inert(name))),
        rows.slice(0, MOST_SHOWN).map(row => h("tr", null, row.map(cell))),
      ),
    ),
    n_rows > MOST_SHOWN ? h("p", { class: "rt-faint" }, `${number(MOST_SHOWN)} of ${number(n_rows)} rows`) : null,
    h("pre", { class: "rt-sql rt-mono", tabindex: "0" }, inert(sql)),
    copyButton(() => sql, "copy the SQL"),
  );
}
