// The filter in the store's query language, and the search in the text. An error points at the bad token.

import { debounce, ghost, h, replace } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { isStatic } from "../../lib/share.js";
import * as state from "../../lib/state.js";

const EXAMPLES = [
  "reward < 0.5",
  "flags has 'truncated'",
  "n_tool_errors > 0",
  "staleness_max >= 2",
  "reward >= 1 and n_sampled > 500",
];

export function buildFilterBar({ columns = () => [], placeholder = "filter, such as reward < 0.5" } = {}) {
  const list = h("datalist", { id: `rt-columns-${Math.random().toString(36).slice(2)}` });
  const where = h("input.rt-input.rt-where#filter-input", {
    placeholder,
    spellcheck: "false",
    autocomplete: "off",
    "aria-label": "Filter",
    onkeydown: event => {
      if (event.key === "Enter") state.set({ where: event.target.value.trim() });
    },
    onchange: event => state.set({ where: event.target.value.trim() }),
    onfocus: () => showHelp(),
  });
  const text = h("input.rt-input.rt-search#search-input", {
    type: "search",
    placeholder: "search the text",
    "aria-label": "Search the text",
    oninput: debounce(250, event => state.set({ text: event.target.value.trim() })),
    onkeydown: event => {
      if (event.key === "Enter") text.blur(); // so that n goes on
    },
  });
  const below = h("div.rt-filter-below");
  const explain = ghost("explain", () => state.set({ page: "explain", against: "rest=1", text: null, sort: null }), {
    title: "What these rollouts have that the others do not",
    testid: "filter-explain",
  });
  const clear = ghost("clear", () => state.set({ where: null, text: null }));
  const matched = h("b.rt-nowrap#match-count", { role: "status" });
  const actions = h("span.rt-filter-actions", { hidden: true }, matched, explain, clear);
  const root = h("div.rt-filter-bar#filter-bar", where, text, actions, list, below);
  let failing = false;

  function showHelp() {
    if (failing || where.value) return;
    replace(
      below,
      h("span.rt-faint", "try "),
      EXAMPLES.map(example =>
        h(
          "button.rt-chip.rt-mono",
          {
            onmousedown: event => event.preventDefault(),
            onclick: () => {
              where.focus();
              where.value = example;
              state.set({ where: example });
            },
          },
          example,
        ),
      ),
      h("details.rt-filter-columns", h("summary", "columns"), h("div.rt-mono", columns().join("  "))),
    );
  }
  where.addEventListener("blur", () =>
    setTimeout(() => {
      if (!failing && !root.contains(document.activeElement)) replace(below);
    }, 150),
  );

  return {
    root,
    focusFilter: () => where.focus(),
    focusSearch: () => text.focus(),
    update(now) {
      if (document.activeElement !== where) where.value = now.where || "";
      if (document.activeElement !== text) text.value = now.text || "";
      actions.hidden = !now.where && !now.text;
      explain.hidden = !now.where || isStatic();
    },
    // How many match, beside what they were asked by.
    matched(n) {
      matched.textContent = n === null ? "" : `${number(n)} match`;
    },
    error(problem) {
      if (problem) {
        matched.textContent = "";
        replace(below, pointed(problem));
      } else if (failing || document.activeElement !== where) replace(below);
      failing = Boolean(problem);
      where.classList.toggle("rt-bad", failing);
    },
  };
}

// The query again, with the offending part marked, and what was expected.
export function pointed(problem) {
  const query = problem.query ?? state.get().where ?? "";
  const { start } = problem;
  const message = h("div.rt-filter-message#filter-error", { role: "alert" }, problem.message.split("\n")[0]);
  if (start === undefined || start === null) return message;
  const stop = Math.max(problem.stop ?? start + 1, start + 1);
  return [
    h(
      "div.rt-filter-pointed.rt-mono",
      query.slice(0, start),
      h("mark#filter-error-token", query.slice(start, stop) || "␣"),
      query.slice(stop),
    ),
    message,
  ];
}
