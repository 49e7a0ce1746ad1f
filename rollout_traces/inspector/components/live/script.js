// Live: the rollouts in flight, the silent and the slowest first, and one of them while it grows.

import { h, notice, replace, scrolling, table } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { mounted, setPopulation } from "../../lib/pages.js";
import { latest } from "../../lib/remote.js";
import * as state from "../../lib/state.js";
import { firstWords, inert } from "../../lib/text.js";
import { duration, landed, opened } from "./opened.js";

const REFRESH = 1000;
const HEADS = ["rollout", "stage", "time", "silent", "turns", "tokens", "last words", "where"];
const SILENT = HEADS.indexOf("silent");
const WORDS = HEADS.indexOf("last words");
const MOST_WORDS = 1000;
const NUMBERS = ["time", "silent", "turns", "tokens"];

let call;
let root;
let shownFor = "";
let list = null;
let timer = 0;
const newest = latest();
const newestOpened = latest();
const slot = () => root.querySelector(".rt-flight");

export function mount(element, server) {
  [root, call] = mounted("live", element, server, { update });
  document.addEventListener("visibilitychange", again);
}

function update(now) {
  const wanted = state.valuesOf(now, ["project", "run"]);
  if (wanted !== shownFor) list = null;
  shownFor = wanted;
  load(now);
}

// A page that nobody sees asks for nothing.
function again() {
  clearTimeout(timer);
  timer = 0;
  if (document.hidden || state.get().page !== "live") return;
  timer = setTimeout(() => load(state.get()), REFRESH);
}

function load(now) {
  const place = { project: now.project, run: now.run || "" };
  newest(
    call("live", place),
    answer => {
      draw(answer, now);
      again();
    },
    error => {
      list = null;
      setPopulation("live");
      replace(slot(), notice("info", "Nothing in flight to show", error.message));
      again();
    },
  );
  if (now.live)
    newestOpened(
      call("live_rollout", { ...place, id: now.live }),
      answer => opened(list?.side, answer),
      error => list && replace(list.side, notice("info", "Not in flight", inert(error.message))),
    );
}

function draw(answer, now) {
  if (!answer.run) {
    list = null;
    setPopulation("live");
    replace(
      slot(),
      notice(
        "info",
        "Nothing says what is in flight",
        'A training loop says it: with logger.live(prompt, step=step) as rollout: rollout.stage("sampling", turns=1, tokens=40, words=text).',
        "What is shown here is no part of what is stored: it is dropped where there is no room, and the oldest go.",
      ),
    );
    return;
  }
  setPopulation(
    "live",
    h("b", `${number(answer.n_running)} in flight`),
    answer.n_silent ? ` · ${number(answer.n_silent)} silent for a minute or longer` : "",
    answer.n_lost ? ` · ${number(answer.n_lost)} were running` : "",
    answer.n_ended ? ` · ${number(answer.n_ended)} ended` : "",
    answer.n_left_out ? ` · ${number(answer.n_left_out)} faster ones are not listed` : "",
  );
  if (!list) frame();
  list.side.hidden = !now.live;
  slot().classList.toggle("rt-flight-open", Boolean(now.live));
  const stages = Object.entries(answer.stages).map(([stage, n]) => h("span.rt-chip", `${stage} ${number(n)}`));
  replace(list.head, stages);
  const remarks = answer.remarks.map(text => h("p.rt-flight-remark", inert(text)));
  replace(list.remarks, remarks);
  fill(list.going, answer.rollouts, now);
  fill(list.ended, answer.ended, now);
  list.endedTitle.hidden = !answer.ended.length;
  list.ended.node.hidden = !answer.ended.length;
  list.none.hidden = Boolean(answer.rollouts.length);
}

function frame() {
  const made = (title, testid, hasEnded) => {
    const node = table(
      { class: "rt-flight-table", "aria-label": title, testid },
      HEADS.map(name =>
        h("th", { class: NUMBERS.includes(name) ? "rt-num" : null }, hasEnded && name === "silent" ? "stored" : name),
      ),
      [],
    );
    return { node, body: node.querySelector("tbody"), rows: new Map() };
  };
  list = {
    head: h("div.rt-flight-head#flight-stages"),
    remarks: h("div#flight-remarks"),
    going: made("In flight", "flight-going", false),
    ended: made("Ended", "flight-ended", true),
    endedTitle: h("h2", "Ended last"),
    none: h("p.rt-empty", "Nothing is in flight."),
    side: h("aside.rt-flight-side.rt-scroll#flight-opened", { hidden: true }),
  };
  replace(
    slot(),
    h(
      "div.rt-flight-list",
      list.head,
      list.remarks,
      list.none,
      scrolling("In flight", list.going.node, ".rt-flight-scroll"),
      list.endedTitle,
      scrolling("Ended last", list.ended.node, ".rt-flight-scroll"),
    ),
    list.side,
  );
}

// Rows are kept by id, so that what is read, chosen or focused stays where it is: a refresh changes texts alone.
function fill(made, rollouts, now) {
  const rows = new Map();
  rollouts.forEach((each, at) => {
    const row = made.rows.get(each.id) || newRow(each);
    tell(row, each, now);
    rows.set(each.id, row);
    if (made.body.children[at] !== row.node) made.body.insertBefore(row.node, made.body.children[at] || null);
  });
  for (const [id, row] of made.rows) if (!rows.has(id)) row.node.remove();
  made.rows = rows;
}

function newRow(each) {
  const cells = Array.from({ length: 8 }, (_, at) => h("td", { class: at >= 2 && at <= 5 ? "rt-num" : null }));
  const open = h(
    "button.rt-flight-name",
    { title: inert(each.prompt || ""), onclick: () => state.set({ live: each.id }) },
    firstWords(each.prompt || "", 60) || each.id,
  );
  cells[0].append(open);
  cells[WORDS].className = "rt-flight-words"; // cut at their beginning: what was written last is news
  return { node: h("tr#flight-row", { dataset: { id: each.id } }, cells), cells, texts: [] };
}

function tell(row, each, now) {
  const stage = each.detail ? `${each.stage} ${each.detail}` : each.stage;
  const texts = [
    `${each.fate === "lost" ? "was " : ""}${inert(stage)}${["running", "lost"].includes(each.fate) ? ` · ${duration(each.in_stage)}` : ""}`,
    duration(each.seconds),
    each.fate === "running" ? duration(each.silent) : each.is_stored ? "stored" : "",
    number(each.turns),
    number(each.tokens),
    firstWords(each.words || "", MOST_WORDS),
    [
      each.step === null ? "" : `step ${each.step}`,
      each.source && inert(each.source),
      `${inert(each.node)}:${each.rank}`,
    ]
      .filter(Boolean)
      .join(" · "),
  ];
  const chosen = each.id === now.live;
  row.node.className = [chosen && "rt-here", each.is_silent && "rt-flight-silent", `rt-flight-${each.fate}`]
    .filter(Boolean)
    .join(" ");
  texts.forEach((text, at) => {
    const cell = at + 1; // behind its name, which stays
    if (row.texts[at] === text) return;
    row.cells[cell].replaceChildren(
      cell === SILENT && each.is_stored ? landed(each) : cell === WORDS ? h("bdi", { dir: "ltr" }, text) : text,
    );
  });
  row.texts = texts;
}
