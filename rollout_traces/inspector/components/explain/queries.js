// The figures of a sentence, computed again by the query that gave them: shown on demand, with the statement.

import { copyButton, ghost, h, replace, scrolling, table } from "../../lib/dom.js";
import { number, shown } from "../../lib/format.js";
import { isStatic } from "../../lib/share.js";
import { inert } from "../../lib/text.js";

const ABOVE = 60; // pixels that stay in sight above a step's row

// slot: where the answer is drawn; ask() -> {queries: [{sql, columns, rows, n_rows}]}; step: whose row is marked and in
// sight. Null where there is no server.
export function queries(slot, ask, step = null) {
  if (isStatic()) return null;
  let open = false;
  const toggle = ghost(
    "figures",
    async () => {
      open = !open;
      toggle.setAttribute("aria-expanded", String(open));
      if (!open) return replace(slot);
      replace(slot, h("p.rt-faint", "Computing…"));
      try {
        const answer = await ask();
        if (!open) return undefined;
        slot.replaceChildren(...answer.queries.map(query => drawn(query, step)));
        for (const row of slot.querySelectorAll(".rt-here")) showRow(row);
      } catch (error) {
        replace(slot, h("p.rt-faint", { role: "alert" }, error.message));
      }
      return undefined;
    },
    { "aria-expanded": "false", title: "The query that gives these figures, and its answer", testid: "figures" },
  );
  return toggle;
}

function showRow(row) {
  const box = row.closest(".rt-table-scroll");
  box.scrollTop += row.getBoundingClientRect().top - box.getBoundingClientRect().top - ABOVE;
}

function drawn({ sql, columns, rows, n_rows }, step) {
  const sides = columns.indexOf("side");
  const steps = columns.indexOf("step");
  const isHere = row => step !== null && steps >= 0 && row[steps] === step;
  const cell = (value, at) => h("td", at === sides ? (value ? "B" : "A") : shown(value, 6));
  return h(
    "div.rt-query#query",
    scrolling(
      "The query's answer",
      table(
        null,
        columns.map(inert),
        rows.map(row => h("tr", { class: isHere(row) ? "rt-here" : null }, row.map(cell))),
      ),
    ),
    n_rows > rows.length && h("p.rt-faint", `${number(rows.length)} of ${number(n_rows)} rows`),
    h("pre.rt-sql.rt-mono", { tabindex: "0" }, inert(sql)),
    copyButton(() => sql, "copy the SQL"),
  );
}
