// Prompts: the list of a run and split, and one prompt over steps, splits and runs.

import { button, ghost, h, notice, onWidth, replace, scrolling, table } from "../../lib/dom.js";
import { number, percent, plural, signed, signedBeside } from "../../lib/format.js";
import { promptLink } from "../../lib/going.js";
import { mounted, setPopulation } from "../../lib/pages.js";
import { latest } from "../../lib/remote.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { onePrompt } from "./one_prompt.js";

// What a second click on a column asks for.
const CONTRARY = { solved: "easiest" };
const ASKED = ["project", "run", "split", "where", "order"];
const COLUMNS = [
  ["solve_rate", "solved", "solved"],
  ["trend", "trend", "trend"],
  ["spread", "spread", "variance"],
  ["visits", "visits", "visits"],
  ["tokens", "tokens", "tokens"],
  ["wasted", "in tied groups", "waste"],
];

let call;
let root;
let shownFor = "";
let list = null;
let one = null;
const newest = latest();
const slot = () => root.querySelector(".rt-prompts");

export function mount(element, server) {
  [root, call] = mounted("prompts", element, server, { update });
  onWidth(slot(), () => one && drawOne());
}

function update(now, changed) {
  const wanted = state.valuesOf(now, now.prompt ? ["project", "prompt"] : ASKED);
  if (wanted !== shownFor) {
    shownFor = wanted;
    now.prompt ? loadOne(now) : loadList(now);
  } else if (one && ["smooth", "log", "step"].some(key => changed.has(key))) drawOne();
}

const asked = now => ({ ...state.placeOf(now), where: now.where || "", order: now.order || "" });
const fail = (error, ...more) => replace(slot(), notice("info", "No prompts to show", error.message, ...more));

function loadList(now) {
  one = null;
  setPopulation("prompts");
  replace(slot(), h("div.rt-loading", "Looking at every prompt…"));
  newest(
    call("prompt_list", asked(now)),
    answer => {
      list = answer;
      drawList(now);
    },
    error => fail(error, "A prompt is recognised by its key: log prompt_keys with each batch."),
  );
}

function drawList(now) {
  setPopulation(
    "prompts",
    h("b", plural(list.total, "prompt")),
    ` in ${inert(now.run)}, ${inert(now.split)}`,
    list.keyless ? ` · ${number(list.keyless)} rollouts have no prompt key` : "",
    " · figures are over all rollouts, from the ledger",
  );
  if (!list.total)
    return replace(
      slot(),
      notice(
        "info",
        "No prompts here",
        list.keyless
          ? `${number(list.keyless)} rollouts have no prompt key. Log prompt_keys with each batch.`
          : "No rollouts in this place.",
      ),
    );
  const sourced = list.prompts.some(each => each.source);
  const head = ([name, title, order]) => {
    const isOn = order === list.order || CONTRARY[order] === list.order;
    const next = order === list.order ? (CONTRARY[order] ?? order) : order;
    return h(
      "th.rt-num",
      { "aria-sort": isOn ? "other" : null },
      h(
        "button.rt-th",
        {
          "aria-pressed": String(isOn),
          dataset: { order: list.order },
          testid: `order-${order}`,
          onclick: () => state.set({ order: next }),
        },
        title,
      ),
    );
  };
  const all = ghost("all", () => state.set({ where: null }));
  const steepest = list.prompts.reduce((top, each) => Math.max(top, Math.abs(each.trend ?? 0)), 0);
  return replace(
    slot(),
    h(
      "h1.rt-prompts-title",
      `${plural(list.total, "prompt")} of ${inert(now.split)}`,
      now.where && h("span.rt-faint", ` where ${inert(now.where)} `, all),
    ),
    scrolling(
      "Prompts",
      table(
        { class: "rt-prompts-table", testid: "prompts-table" },
        [
          "prompt",
          sourced ? "source" : null,
          COLUMNS.map(head),
          h("th.rt-num", "first solved"),
          h("th.rt-num", "steps"),
        ],
        list.prompts,
        each => row(each, sourced, steepest),
      ),
      ".rt-prompts-scroll",
    ),
    list.prompts.length < list.total && button(`more of ${number(list.total)}`, more, { testid: "prompts-more" }),
  );
}

function row(each, sourced, steepest) {
  const solved =
    each.solve_rate === null
      ? h("span.rt-faint", "not known")
      : [
          h("span.rt-bar.rt-solved", h("i", { style: { width: `${each.solve_rate * 100}%` } })),
          h("span", `${percent(each.solve_rate)} of ${number(each.tried)}`),
        ];
  return h(
    "tr#prompt-row",
    h("td.rt-prompt-cell", promptLink(each, 160)),
    sourced ? h("td.rt-ellipsis.rt-prompt-source", inert(each.source || "")) : null,
    h("td.rt-num", solved),
    h("td.rt-num", { title: `reward a step: ${signed(each.trend)}` }, signedBeside(each.trend, steepest)),
    h("td.rt-num", { title: "standard deviation of the reward" }, number(each.spread)),
    h("td.rt-num", number(each.visits)),
    h("td.rt-num", number(each.tokens)),
    h("td.rt-num", each.tokens ? percent(each.wasted / each.tokens) : "–"),
    h("td.rt-num", firstSolved(each)),
    h(
      "td.rt-num.rt-nowrap",
      each.first_step === each.last_step
        ? number(each.first_step)
        : `${number(each.first_step)} to ${number(each.last_step)}`,
    ),
  );
}

function firstSolved({ first_solved, solve_rate }) {
  if (first_solved !== null) return number(first_solved);
  return solve_rate === null ? h("span.rt-faint", "not known") : "never";
}

async function more() {
  const now = state.get();
  const next = await call("prompt_list", { ...asked(now), after: list.prompts.length });
  list = { ...next, prompts: [...list.prompts, ...next.prompts] };
  drawList(now);
}

function loadOne(now) {
  setPopulation("prompts");
  replace(slot(), h("div.rt-loading", "Looking for it in every run…"));
  newest(
    call("prompt", { ...state.placeOf(now), prompt: now.prompt }),
    answer => {
      one = answer;
      drawOne();
    },
    error => {
      one = null;
      fail(error);
    },
  );
}

function drawOne() {
  const node = slot();
  setPopulation(
    "prompts",
    h("b", plural(one.rollouts, "rollout")),
    ` of this prompt in ${plural(one.n_visits, "visit")}`,
    one.shown < one.n_visits ? `, the last ${number(one.shown)} are shown` : "",
  );
  replace(node, onePrompt(one, state.get(), node.clientWidth));
}
