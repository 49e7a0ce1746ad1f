// The run as a table: columns, filter, search, order, how a column is spread, export.

import { button, ghost, h, notice, replace, segmented, svg } from "../../lib/dom.js";
import { toRollout } from "../../lib/going.js";
import { rewardColour } from "../../lib/colour.js";
import { USUAL } from "../../lib/flags.js";
import { number, percent, plural, shown } from "../../lib/format.js";
import { shortcut } from "../../lib/keyboard.js";
import { isUsual, kept, mounted, onUsual, setPopulation } from "../../lib/pages.js";
import { latest } from "../../lib/remote.js";
import { exportDialog } from "../../lib/share.js";
import * as state from "../../lib/state.js";
import { firstWords, inert } from "../../lib/text.js";
import { buildFilterBar } from "../filter_bar/script.js";

// The columns whose spread is worth seeing before any is asked for.
const WORTH_SEEING = ["reward", "flags", "stop_reason", "source", "n_sampled", "discard_reason"];
const PANEL_FROM = 1000;

const TABLE_KEYS = ["project", "run", "split", "where", "text", "sort", "rows", "columns"];

let call;
let root;
let filterBar;
let known = [];
let knownFor = "";
let shownFor = "";
let spreadFor = "";
let data = null;
let choosing = false;
let spreads = null; // until they are asked for or put away, shown where there is room
let columnQuery = "";
let body = null;
let sentinel = null;
let observer = null;
const newestTable = latest();
const newestSpread = latest();
const part = selector => root.querySelector(selector);

export function mount(element, server) {
  [root, call] = mounted("explore", element, server, { update, news: now => load(now, shownFor, { quiet: true }) });
  filterBar = buildFilterBar({ columns: () => known.map(column => column.name) });
  const here = { page: "explore", section: "Explore" };
  shortcut("f", "Filter", () => filterBar.focusFilter(), here);
  shortcut("/", "Search the text", () => filterBar.focusSearch(), here);
  shortcut(
    "r",
    "Kept rollouts or all rows",
    () => state.set({ rows: state.get().rows ? null : "all", columns: null, sort: null }),
    here,
  );
  onUsual(() => {
    if (data) drawTable(state.get());
  });
  window.addEventListener("rt-escape", () => choosing && toggleColumns());
}

function asked(now) {
  return {
    ...state.placeOf(now),
    where: now.where || "",
    text: now.text || "",
    sort: now.sort || "",
    rows: now.rows || "traces",
    columns: (now.columns || "").split(",").filter(Boolean),
  };
}

async function update(now) {
  drawHead(now);
  filterBar.update(now);
  const wanted = state.valuesOf(now, TABLE_KEYS);
  const forColumns = JSON.stringify([now.project, now.rows ?? null]);
  if (forColumns !== knownFor) {
    knownFor = forColumns;
    call("columns", asked(now)).then(
      answer => {
        known = answer.columns;
        if (data) drawTable(state.get());
        drawSide(state.get());
      },
      () => {},
    );
  }
  if (wanted !== shownFor) load(now, wanted);
  else drawSide(now);
}

function drawHead(now) {
  const head = part(".rt-explore-head");
  if (head.contains(document.activeElement) && document.activeElement.matches("input") && head.childElementCount)
    return;
  replace(
    head,
    segmented(
      "Which rows",
      now.rows || "traces",
      [
        ["traces", "kept rollouts", "Rollouts that were kept as traces (r)"],
        ["all", "all rows", "Every rollout that the ledger knows of, traced or not (r)"],
      ],
      rows => state.set({ rows: rows === "all" ? "all" : null, columns: null, sort: null }),
      "rows",
    ),
    filterBar.root,
    button("spreads", toggleSpreads, {
      "aria-pressed": String(!choosing && withSpreads()),
      title: "How the values are spread: histograms and most frequent values",
      testid: "toggle-spreads",
    }),
    button("columns", toggleColumns, { "aria-pressed": String(choosing), testid: "choose-columns" }),
    button("export", openExport, { testid: "export" }),
  );
}

// What is shown beside the table is switched: the choice of columns lies over the spreads.
function toggleColumns() {
  choosing = !choosing;
  drawHead(state.get());
  drawSide(state.get());
}

function toggleSpreads() {
  spreads = choosing || !withSpreads();
  choosing = false;
  if (!spreads) state.set({ hist: null });
  drawHead(state.get());
  drawSide(state.get());
}

function load(now, wanted, { quiet = false } = {}) {
  shownFor = wanted;
  const slot = part(".rt-explore-table");
  if (!quiet && !data) replace(slot, h("div.rt-loading", "Loading…"));
  newestTable(
    call("table", asked(now)),
    answer => {
      filterBar.error(null);
      if (quiet && data && slot.scrollTop > 200) {
        data.total = answer.total;
        drawPopulation(answer, now);
        return;
      }
      data = answer;
      drawTable(now);
      slot.scrollTop = 0;
      drawPopulation(answer, now);
      spreadFor = "";
      drawSide(now);
    },
    error => {
      setPopulation("explore");
      data = null;
      if (error.start !== undefined) {
        filterBar.error(error);
        replace(slot, notice("info", "The filter or the order cannot be read", "Mend the marked place, or clear it."));
      } else replace(slot, notice("error", "The table could not be read", error.message));
    },
  );
}

function drawPopulation(answer, now) {
  const found = now.where || now.text ? `${plural(answer.total, "row")} match` : null;
  setPopulation(
    "explore",
    now.rows === "all" && answer.n_rows
      ? [
          h("b", plural(answer.n_rows, "rollout")),
          ` over all steps, ${number(answer.n_traced)} of them kept with their text`,
          found ? ` · ${found}` : "",
        ]
      : kept(
          answer,
          " over all steps",
          found,
          answer.n_traced < answer.n_rows ? "what is listed and counted here are the kept ones, not all" : null,
        ),
  );
}

function order(now, name) {
  if (now.sort === `-${name}`) return state.set({ sort: name });
  if (now.sort === name) return state.set({ sort: null });
  return state.set({ sort: `-${name}` });
}

function kindOf(name) {
  return known.find(column => column.name === name)?.kind || "number";
}

function cell(name, value, step) {
  if (value === null || value === undefined) return h("td.rt-none", "");
  if (Array.isArray(value))
    return h(
      "td",
      h.each("span.rt-cell-tags", value, tag =>
        h(
          "span",
          name === "flags" && isUsual(tag, step)
            ? { class: "rt-chip", title: USUAL, testid: "usual-flag" }
            : { class: `rt-chip rt-chip-${data.severities[tag] || "plain"}` },
          inert(String(tag)).replaceAll("_", " "),
        ),
      ),
    );
  if (name === "reward")
    return h(
      "td.rt-num",
      h("span.rt-cell-reward", { style: { "--dot": rewardColour(value, data.range) } }, number(value)),
    );
  if (typeof value === "number") return h("td.rt-num", number(value));
  return h(
    "td.rt-cell-text",
    { dir: "auto", testid: name === "snippet" ? "snippet" : null },
    firstWords(String(value), name === "snippet" ? 160 : 110),
  );
}

function rowNode(row) {
  const open = () => row.traced && toRollout(row);
  return h(
    "tr",
    {
      tabindex: 0,
      class: row.traced ? "" : "rt-not-traced",
      title: row.traced ? "Open under Rollouts" : "Not kept as a trace: the ledger has its numbers alone",
      onclick: open,
      onkeydown: event => event.key === "Enter" && open(),
    },
    row.cells.map((value, at) => cell(data.columns[at], value, row.step)),
  );
}

function drawTable(now) {
  const slot = part(".rt-explore-table");
  if (!data.total) {
    replace(
      slot,
      h(
        "div.rt-empty",
        h("b", "Nothing matches."),
        h(
          "p",
          now.rows === "all" && !data.n_rows
            ? "No ledger was logged in this split: RolloutLogger(ledger=True) keeps one row of every rollout."
            : "Change the filter, or look at all rows.",
        ),
      ),
    );
    return;
  }
  body = h("tbody", data.rows.map(rowNode));
  const head = h.each("tr", data.columns, name => {
    if (name === "snippet") return h("th", { title: "The text around what was found" }, "found");
    const isNumber = kindOf(name) === "number";
    const spread = h(
      "button.rt-hist-button",
      {
        title: `How ${name} is spread`,
        "aria-label": `How ${name} is spread`,
        "aria-pressed": String(now.hist === name),
        onclick: () => {
          choosing = false;
          state.set({ hist: now.hist === name ? null : name });
        },
      },
      svg(
        "svg",
        { viewBox: "0 0 10 9", width: 10, height: 9, "aria-hidden": "true" },
        [4, 9, 6].map((height, at) => svg("rect", { x: 3.5 * at, y: 9 - height, width: 3, height })),
      ),
    );
    return h(
      "th",
      {
        class: isNumber ? "rt-num" : "",
        title: known.find(column => column.name === name)?.meaning || name,
        "aria-sort": now.sort === name ? "ascending" : now.sort === `-${name}` ? "descending" : null,
      },
      isNumber && spread,
      h(
        "button",
        { onclick: () => order(now, name) },
        name,
        h("span.rt-sort", now.sort === name ? "↑" : now.sort === `-${name}` ? "↓" : ""),
      ),
      !isNumber && spread,
    );
  });
  sentinel = h("div.rt-sentinel");
  replace(slot, h("table", h("thead", head), body), sentinel);
  observer?.disconnect();
  observer = new IntersectionObserver(
    entries => {
      if (entries.some(entry => entry.isIntersecting)) more();
    },
    { root: slot, rootMargin: "600px" },
  );
  observer.observe(sentinel);
}

// The end of a table that was drawn meanwhile is looked at anew: what came into sight while this was asked was passed over.
let fetching = false;
async function more() {
  if (!data?.next || fetching) return;
  fetching = true;
  const forData = data;
  const answer = await call("table", { ...asked(state.get()), after: data.next }).catch(() => null);
  fetching = false;
  if (!data || (!answer && data === forData)) return;
  if (data === forData) {
    data.next = answer.next;
    data.rows.push(...answer.rows);
    body.append(...answer.rows.map(rowNode));
  }
  observer.unobserve(sentinel);
  if (data.next) observer.observe(sentinel);
}

const withSpreads = () => spreads ?? root.clientWidth >= PANEL_FROM;

// The panel on the right: the chosen column's spread, those worth seeing, or the choice of columns.
function drawSide(now) {
  const side = part(".rt-explore-side");
  const open = choosing || now.hist || withSpreads();
  part(".rt-explore-main").classList.toggle("rt-with-side", Boolean(open));
  if (!open) {
    spreadFor = "";
    return replace(side);
  }
  if (choosing) {
    spreadFor = "";
    return replace(side, chooser(now));
  }
  const wanted = JSON.stringify([now.hist, shownFor, known.length, withSpreads()]);
  if (wanted === spreadFor || !data) return undefined;
  spreadFor = wanted;
  const seen = withSpreads() ? WORTH_SEEING.filter(name => known.some(column => column.name === name)) : [];
  const names = [...new Set([now.hist, ...seen])].filter(Boolean);
  const slots = names.map(
    name =>
      side.querySelector(`[data-spread="${CSS.escape(name)}"]`) ||
      h("section.rt-spread", { dataset: { spread: name } }, h("h2.rt-mono", name)),
  );
  replace(side, slots);
  return newestSpread(
    Promise.all(
      names.map(column => call("spread", { ...asked(now), column }).catch(error => ({ column, error: error.message }))),
    ),
    answers =>
      answers.forEach((answer, at) =>
        replace(slots[at], answer.error ? h("p.rt-empty", answer.error) : spreadView(answer)),
      ),
    () => {},
  );
}

function chooser(now) {
  const chosen = data ? data.columns : [];
  const list = h("div.rt-column-list");
  const fill = query =>
    replace(
      list,
      known
        .filter(column => column.name.includes(query))
        .map(column =>
          h(
            "label",
            { title: column.meaning },
            h("input", {
              type: "checkbox",
              checked: chosen.includes(column.name),
              onchange: event => {
                const others = (data?.columns || []).filter(name => name !== column.name);
                const columns = event.target.checked ? beside(others, column.name) : others;
                state.set({ columns: columns.join(",") || null });
              },
            }),
            h("span.rt-mono", column.name),
            h("span.rt-faint.rt-ellipsis", column.meaning),
          ),
        ),
    );
  fill(columnQuery);
  return h(
    "section.rt-columns-panel#columns-panel",
    h(
      "div.rt-side-head-line",
      h("h2", "Columns"),
      now.columns ? ghost("the usual ones", () => state.set({ columns: null })) : null,
    ),
    h("input.rt-input", {
      placeholder: "search columns",
      value: columnQuery,
      oninput: event => {
        columnQuery = event.target.value.trim();
        fill(columnQuery);
      },
    }),
    list,
  );
}

// A column that is added stands after the numbers one came for, where it is seen, not behind the long text.
function beside(columns, name) {
  const at = columns.indexOf("reward") + 1;
  return [...columns.slice(0, at), name, ...columns.slice(at)];
}

function narrow(condition) {
  const now = state.get();
  state.set({ where: now.where ? `(${now.where}) and ${condition}` : condition });
}

function narrowTo({ column, bins: { edges, counts } }, i) {
  narrow(`${column} >= ${edges[i]} and ${column} ${i === counts.length - 1 ? "<=" : "<"} ${edges[i + 1]}`);
}

const quoted = value => `'${String(value).replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`;

function spreadView(answer) {
  const head = h(
    "div.rt-side-head-line",
    h("h2.rt-mono", answer.column),
    state.get().hist === answer.column && ghost("close", () => state.set({ hist: null })),
  );
  if (!(answer.bins?.counts || answer.facets).length) return [head, h("p.rt-faint", "No values here.")];
  if (answer.bins) {
    const { edges, counts, unknown } = answer.bins;
    const top = Math.max(...counts);
    const tall = count => (top ? (count / top) * 66 : 0);
    const width = 280;
    const bar = width / counts.length;
    const drawing = svg(
      "svg.rt-hist#histogram",
      { viewBox: `0 0 ${width} 90`, role: "group", "aria-label": `How ${answer.column} is spread` },
      counts.map((count, i) =>
        svg(
          "g.rt-hist-bar",
          {
            role: "button",
            tabindex: count ? "0" : "-1",
            "aria-label": `${answer.column} from ${number(edges[i])} to ${number(edges[i + 1])}: ${plural(count, "row")}`,
            onclick: () => narrowTo(answer, i),
            onkeydown: event => {
              if (event.key === "Enter") narrowTo(answer, i);
            },
          },
          svg("title", `${number(edges[i])} to ${number(edges[i + 1])}: ${number(count)}`),
          svg("rect.rt-hist-hit", { x: i * bar, y: 0, width: bar, height: 70 }),
          svg("rect.rt-hist-fill", {
            x: i * bar + 0.5,
            y: 70 - tall(count),
            width: Math.max(bar - 1, 1),
            height: tall(count),
          }),
        ),
      ),
      svg("text.rt-axis", { x: 0, y: 85 }, number(edges[0])),
      svg("text.rt-axis", { x: width, y: 85, "text-anchor": "end" }, number(edges.at(-1))),
    );
    const without = h("p.rt-faint", unknown ? `${plural(unknown, "row")} without a value` : "");
    return [head, drawing, facetList(answer, answer.facets), without];
  }
  return [head, facetList(answer, answer.facets.slice(0, state.get().hist === answer.column ? 40 : 8))];
}

function facetList({ column, kind }, facets) {
  const total = data.total || 1;
  const top = Math.max(1, ...facets.map(facet => facet[1]));
  return h.each("div.rt-facets#facets", facets, ([value, count]) =>
    h(
      "button",
      {
        disabled: value === null,
        onclick: () =>
          narrow(
            kind === "tags"
              ? `${column} has ${quoted(value)}`
              : `${column} = ${typeof value === "number" ? value : quoted(value)}`,
          ),
      },
      h("span.rt-facet-bar", { style: { width: `${(count / top) * 100}%` } }),
      h("span.rt-ellipsis", value === null ? "unknown" : shown(value)),
      h("b", number(count)),
      h("span.rt-faint", percent(count / total)),
    ),
  );
}

async function openExport() {
  const rows = asked(state.get());
  await exportDialog(only_counted => call("export", { ...rows, only_counted })).catch(error => filterBar.error(error));
}
