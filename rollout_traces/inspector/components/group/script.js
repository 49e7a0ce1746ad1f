// A whole group at a glance: its samples with what they did, where they part, what winners say and losers do not.

import { block, button, ghost, h, notice, numberCell, replace, table } from "../../lib/dom.js";
import { number, plural, signed } from "../../lib/format.js";
import { toRollout } from "../../lib/going.js";
import { rewardColour } from "../../lib/colour.js";
import { shortcut } from "../../lib/keyboard.js";
import { askPopulation, mounted, splitOf } from "../../lib/pages.js";
import { latest } from "../../lib/remote.js";
import { shareButton } from "../../lib/share.js";
import * as state from "../../lib/state.js";
import { firstWords, inert } from "../../lib/text.js";
import { flagChips } from "../samples/script.js";
import { lengthOf, turnStrip } from "../turn_strip/script.js";
import { actionLetters, aligned, firstDifference, keyOf } from "./actions.js";

const KEYS = ["project", "run", "split", "step", "group"];

let call;
let root;
let shownFor = "";
let data = null;
const newest = latest();
const slot = () => root.querySelector(".rt-workbench");

export function mount(element, server) {
  [root, call] = mounted("group", element, server, { update });
  const here = { page: "group", section: "Group" };
  shortcut("J", "Next group", () => move(1), here);
  shortcut("K", "Previous group", () => move(-1), here);
  shortcut("c", "Compare best and worst of the group", () => canCompare() && compare(), here);
}

function update(now) {
  const steps = splitOf(now)?.steps || [];
  if (now.step === undefined && steps.length) return state.set({ step: steps.at(-1) }, { fill: true });
  const wanted = state.valuesOf(now, KEYS);
  if (wanted !== shownFor) load(now, wanted);
  return undefined;
}

function asked(now) {
  return { ...state.placeAtStep(now), group: now.group ?? null };
}

function load(now, wanted) {
  shownFor = wanted;
  newest(
    call("group", asked(now)),
    answer => {
      data = answer;
      draw();
    },
    error => {
      data = null;
      replace(slot(), notice("info", "This group cannot be shown", error.message));
    },
  );
  askPopulation("group", call, asked(now));
}

function move(by) {
  if (!data) return;
  const at = data.groups.indexOf(data.group);
  const next = data.groups[Math.min(Math.max(at + by, 0), data.groups.length - 1)];
  if (next !== data.group) state.set({ group: next });
}

function draw() {
  const letters = actionLetters(data.members);
  replace(slot(), head(), members(letters), parting(), tree(), phrases());
  slot().scrollTop = 0;
}

function head() {
  const at = data.groups.indexOf(data.group);
  return h(
    "header.rt-workbench-head",
    h("h1", `Step ${number(data.step)} · group ${number(data.group)}`),
    h(
      "span",
      "mean reward ",
      h("b", number(data.mean)),
      notCounted(),
      data.tied ? h("span.rt-chip.rt-chip-warn", "tied") : null,
    ),
    h(
      "span.rt-soft",
      `${number(data.members.filter(member => member.id).length)} of ${plural(data.n_rollouts, "rollout")} kept with their text${data.members.every(member => member.id) ? "" : "; the others are rows of the ledger"}`,
    ),
    h(
      "span.rt-workbench-tools",
      button("‹", () => move(-1), { title: "Previous group (K)", "aria-label": "Previous group", disabled: at <= 0 }),
      button("›", () => move(1), {
        title: "Next group (J)",
        "aria-label": "Next group",
        testid: "next-group",
        disabled: at >= data.groups.length - 1,
      }),
      button("compare best and worst", compare, { title: "c", testid: "group-compare", disabled: !canCompare() }),
      shareButton(call, () => ({ ...asked(state.get()), what: "group", step: data.step, group: data.group })),
    ),
    data.prompt ? h("p.rt-workbench-prompt", { dir: "auto" }, firstWords(data.prompt, 400)) : null,
  );
}

const notCounted = () =>
  data.n_not_counted ? ` without ${plural(data.n_not_counted, "infinite or failed reward")}` : "";
const canCompare = () => data?.members.filter(member => member.id).length > 1;
const compare = () => state.set({ page: "compare", a: null, b: null });

function open({ sample, id }, more = {}) {
  toRollout({ step: data.step, group: data.group, sample, id }, more);
}

function members(letters) {
  const kept = data.members.filter(member => member.id);
  const columns = aligned(kept);
  const rowOf = new Map(kept.map((member, at) => [member, columns[at]]));
  const width = Math.max(columns[0]?.length || 0, 1);
  const heads = [
    "sample",
    "reward",
    ...data.components.map(name => name.slice("component/".length)),
    "advantage",
    "sampled",
    "turns",
    "stop",
    "flags",
  ];
  const longest = Math.max(...data.members.map(member => lengthOf(member.turns)), 1);
  return block(
    "section.rt-bench",
    "Samples",
    "best first. Equal letters are equal actions; calls of one tool, and answers, stand in one column again after they part",
    h(
      "div.rt-bench-scroll",
      { tabindex: "0", "aria-label": "Samples" },
      table(
        { testid: "members" },
        [
          heads.map(name => h("th", { title: name === "turns" ? "turns of the assistant" : inert(name) }, inert(name))),
          "its turns",
          h("th", { colspan: width }, "what it did"),
        ],
        data.members,
        member => memberRow(member, letters, rowOf.get(member), width, longest),
      ),
    ),
  );
}

// Where a turn begins; rollouts of text have no tokens to go to.
function placeOf(turns, index) {
  if (!turns.some(turn => turn.n)) return {};
  return { token: turns.slice(0, index).reduce((sum, turn) => sum + turn.n, 0), view: "tokens" };
}

function memberRow(member, letters, row, width, longest) {
  const v = member.values;
  const name = `#${number(member.sample)}`;
  return h(
    "tr",
    { class: member.id ? "" : "rt-not-traced", dataset: { sample: String(member.sample) } },
    h(
      "td",
      member.id
        ? ghost(name, () => open(member), { title: "Open under Rollouts" })
        : h("span.rt-bench-lone", { title: "Not kept as a trace" }, name),
    ),
    h(
      "td.rt-num",
      h("span.rt-cell-reward", { style: { "--dot": rewardColour(v.reward, data.range) } }, number(v.reward)),
    ),
    data.components.map(key => numberCell(v[key])),
    numberCell(v.advantage, signed),
    numberCell(v.n_sampled),
    numberCell(v.n_turns),
    h("td", v.stop_reason ? inert(String(v.stop_reason)) : ""),
    h("td", flagChips(member.flags, data.severities, 2, member.explains)),
    h(
      "td",
      member.turns.length > 0 && turnStrip(member.turns, longest, index => open(member, placeOf(member.turns, index))),
    ),
    row
      ? Array.from({ length: width }, (_, at) => h("td.rt-actions", row[at] ? actionChip(row[at], letters) : null))
      : h("td.rt-faint", { colspan: width }, "its text was not kept"),
  );
}

function actionChip(action, letters) {
  const { at, letter, shared } = letters.get(keyOf(action));
  return h(
    "span",
    {
      class: `rt-action ${shared ? `b${at % 8}` : "rt-action-lone"}${action.failed ? " rt-action-failed" : ""}`,
      title: `${action.name}: ${inert(action.text)}${action.failed ? " (failed)" : ""}`,
    },
    h("b", letter),
    action.kind === "answer" ? " answer" : ` ${inert(action.name)} `,
    action.kind === "answer" ? null : h("span.rt-faint", firstWords(action.text, 22)),
    action.failed ? " ✕" : "",
  );
}

function parting() {
  const kept = data.members.filter(member => member.id);
  if (kept.length < 2) return null;
  const [best, worst] = [kept[0], kept.at(-1)];
  const isTied = best.values.reward !== null && best.values.reward === worst.values.reward;
  const difference = isTied ? null : firstDifference(best, worst);
  const said = action =>
    action
      ? [h("b", inert(action.name)), " ", h("code", { dir: "auto" }, inert(action.text))]
      : h("span.rt-faint", "no further action");
  return block(
    "section.rt-bench#first-action",
    "First action in which best and worst differ",
    null,
    difference === null
      ? h(
          "p.rt-soft",
          isTied
            ? "The kept samples have one reward: none is the best."
            : "None: both did the same and said the same at the end.",
        )
      : h(
          "dl.rt-differ",
          h("dt", `best, #${number(best.sample)}, action ${difference.at + 1}`),
          h("dd", said(difference.best)),
          h("dt", `worst, #${number(worst.sample)}, action ${difference.at + 1}`),
          h("dd", said(difference.worst)),
        ),
  );
}

function tree() {
  if (!data.tree) return null;
  return block(
    "section.rt-bench#prefix-tree",
    "Where they part",
    `tokens that kept samples share after a prompt of ${plural(data.tree.prompt_tokens, "token")}, with the mean reward of each branch`,
    h("ul.rt-branches", branch(data.tree.root, true)),
  );
}

function branch(node, first = false) {
  const lone = node.members.length === 1;
  const member = data.members[node.members[0]];
  const line = [
    h("span.rt-branch-mean", { style: { "--dot": rewardColour(node.mean, data.range) } }, number(node.mean)),
    h("span.rt-branch-count", lone ? `#${number(member.sample)}` : `${number(node.members.length)} samples`),
    h(
      "code.rt-ellipsis",
      { dir: "auto", title: inert(node.text) },
      node.n_tokens ? inert(node.text).replace(/\n/g, "↵") : first ? "they share nothing from here on" : "ends here",
    ),
    h("span.rt-faint.rt-nowrap", plural(node.n_tokens, "token")),
  ];
  const row = lone
    ? h(
        "button.rt-branch",
        { title: "Open there", onclick: () => open(member, { token: node.start, view: "tokens" }) },
        line,
      )
    : h("div.rt-branch", line);
  return h("li", row, node.children.length > 0 && h.each("ul", node.children, child => branch(child)));
}

function phrases() {
  const { winners, losers, n_winners, n_losers } = data.phrases;
  const of = (share, n) => `${number(Math.round(share * n))} of ${number(n)}`;
  const side = (title, found) =>
    h(
      "div",
      h("h3", title),
      found.length
        ? h.each("ul.rt-phrases", found, phrase =>
            h(
              "li",
              h("code", { dir: "auto" }, inert(phrase.text)),
              h("span.rt-faint", `${of(phrase.winners, n_winners)} winners, ${of(phrase.losers, n_losers)} losers`),
            ),
          )
        : h("p.rt-faint", "No phrase tells them apart."),
    );
  return block(
    "section.rt-bench#phrases",
    "What they say",
    `${plural(n_winners, "kept sample")} above the group's mean against ${number(n_losers)} below it; hints, not findings`,
    n_winners && n_losers
      ? h("div.rt-phrase-sides", side("winners say", winners), side("losers say", losers))
      : h(
          "p.rt-faint",
          data.tied
            ? "All rewards are equal: there are no winners."
            : "Samples above and below the mean have to be kept for this.",
        ),
  );
}
