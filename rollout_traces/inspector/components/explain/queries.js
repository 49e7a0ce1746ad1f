// The figures of a sentence, computed again by the query that gave them: shown on demand, with the statement.

import { copyButton, ghost, h, replace, scrolling, table } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { isStatic } from "../../lib/share.js";
import { inert } from "../../lib/text.js";

const MOST_SHOWN = 30;

// slot: where the answer is drawn; ask() -> {queries: [{sql, columns, rows, n_rows}]}. Null where there is no server.
export function queries(slot, ask) {
  if (isStatic()) return null;
  let shown = false;
  const toggle = ghost(
    "figures",
    async () => {
      shown = !shown;
      toggle.setAttribute("aria-expanded", String(shown));
      if (!shown) return replace(slot);
      replace(slot, h("p.rt-faint", "Computing…"));
      try {
        const answer = await ask();
        if (shown) replace(slot, answer.queries.map(drawn));
      } catch (error) {
        replace(slot, h("p.rt-faint", { role: "alert" }, error.message));
      }
      return undefined;
    },
    { "aria-expanded": "false", title: "The query that gives these figures, and its answer", testid: "figures" },
  );
  return toggle;
}

function drawn({ sql, columns, rows, n_rows }) {
  const sides = columns.indexOf("side");
  const cell = (value, at) =>
    h(
      "td",
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
    "div.rt-query",
    { testid: "query" },
    scrolling(
      "The query's answer",
      table(
        null,
        columns.map(name => h("th", inert(name))),
        rows.slice(0, MOST_SHOWN).map(row => h("tr", row.map(cell))),
      ),
    ),
    n_rows > MOST_SHOWN ? h("p.rt-faint", `${number(MOST_SHOWN)} of ${number(n_rows)} rows`) : null,
    h("pre.rt-sql.rt-mono", { tabindex: "0" }, inert(sql)),
    copyButton(() => sql, "copy the SQL"),
  );
}
