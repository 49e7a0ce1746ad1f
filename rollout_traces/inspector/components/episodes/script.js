// Episodes of several rows: the tree of branches, what was trained, the way through time, linked turns.

import { button, ghost, h, notice, numberCell, replace, table } from "../../lib/dom.js";
import { number, plural, seconds, signed } from "../../lib/format.js";
import { rewardColour } from "../../lib/colour.js";
import { shortcut } from "../../lib/keyboard.js";
import { askPopulation, mounted } from "../../lib/pages.js";
import { latest } from "../../lib/remote.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { flagChips } from "../samples/script.js";
import { atStep, stepKeys } from "../step_pager/script.js";
import { LOOK_KEYS, lookOf, lookPatch } from "../transcript/keys.js";
import { TranscriptView } from "../transcript/script.js";
import { spans, strip } from "./way.js";

const KEYS = ["project", "run", "split", "step", "episode"];
const NAMES = {
  opening: "opening",
  continued: "goes on",
  branch: "branch",
  retry: "retry",
  compaction: "compaction",
  sub_agent: "sub-agent",
  unknown: "unobserved",
};

let call;
let root;
let shownFor = "";
let openedFor = "";
let data = null;
let view = null;
let wantedTurn = null;
const newest = latest();
const newestRow = latest();
const part = selector => root.querySelector(selector);

export function mount(element, server) {
  [root, call] = mounted("episodes", element, server, { update });
  const here = { page: "episodes", section: "Episodes" };
  stepKeys(here);
  shortcut("j", "Next branch", () => stepRow(1), here);
  shortcut("k", "Previous branch", () => stepRow(-1), here);
  shortcut("J", "Next episode", () => stepEpisode(1), here);
  shortcut("K", "Previous episode", () => stepEpisode(-1), here);
}

function update(now, changed) {
  const nothing = () => replace(part(".rt-episodes-main"), notice("info", "No rollouts in this split yet", ""));
  if (!atStep(part(".rt-step-pager"), now, nothing)) return undefined;
  const wanted = state.valuesOf(now, KEYS);
  if (wanted !== shownFor) load(now, wanted);
  else if (["group", "sample"].some(key => changed.has(key))) draw();
  else if (view && LOOK_KEYS.some(key => changed.has(key))) view.setLook(lookOf(now));
  return undefined;
}

function load(now, wanted) {
  shownFor = wanted;
  const asked = {
    ...state.placeAtStep(now),
    episode: now.episode || "",
    group: now.group ?? null,
    sample: now.sample ?? null,
  };
  newest(
    call("episodes", asked),
    answer => {
      data = answer;
      draw();
    },
    error => {
      data = null;
      replace(part(".rt-episodes-list"));
      replace(
        part(".rt-episodes-main"),
        notice(
          "info",
          "No episode to show",
          error.message,
          "Rows of one run of an environment share an episode where the trainer, or an import, gives episode_ids (and parents).",
        ),
      );
    },
  );
  askPopulation("episodes", call, asked);
}

// The row that the address names, else the first kept one.
function openRow() {
  const now = state.get();
  const { rows } = data.tree;
  return (
    rows.find(row => String(row.group) === now.group && String(row.sample) === now.sample) ||
    rows.find(row => row.id) ||
    rows[0]
  );
}

function choose(row, turn = null) {
  wantedTurn = turn;
  if (row === openRow() && turn !== null) {
    view?.goToTurn(turn);
    return;
  }
  state.set({ episode: data.tree.episode, group: row.group, sample: row.sample, id: null, token: null });
}

function stepRow(by) {
  if (!data) return;
  const { rows } = data.tree;
  choose(rows[Math.min(Math.max(rows.indexOf(openRow()) + by, 0), rows.length - 1)]);
}

function stepEpisode(by) {
  if (!data) return;
  const at = data.episodes.findIndex(each => each.episode === data.tree.episode) + by;
  if (data.episodes[at]) state.set({ episode: data.episodes[at].episode, group: null, sample: null });
}

const nameOf = row => (row.name ? inert(row.name) : `${number(row.group)} #${number(row.sample)}`);

function draw() {
  const opened = openRow();
  replace(
    part(".rt-episodes-list"),
    data.episodes.map(listed),
    data.n_beyond ? h("p.rt-faint", `${plural(data.n_beyond, "further row")} of this step: not looked at.`) : null,
  );
  const below = part(".rt-branch-slot") || h("section.rt-branch-slot");
  replace(part(".rt-episodes-main"), head(), tree(opened), below);
  open(opened, below);
}

function listed(each) {
  return h(
    "button.rt-episode#episode",
    {
      "aria-current": each.episode === data.tree.episode ? "true" : null,
      title: inert(each.episode),
      onclick: () => state.set({ episode: each.episode, group: null, sample: null }),
    },
    h("span.rt-episode-dot", { style: { "--dot": rewardColour(each.reward, data.range) } }),
    h("span.rt-ellipsis", inert(each.episode)),
    h("b", number(each.reward)),
    h(
      "small",
      `group ${number(each.group)} · ${plural(each.n_rows, "row")}, ${number(each.n_trained)} trained, ${number(each.n_kept)} kept`,
    ),
  );
}

function head() {
  const { tree: shown } = data;
  const trained = shown.rows.filter(row => row.values.trained === 1).length;
  return h(
    "header.rt-episode-head",
    h("h1", `Episode ${inert(shown.episode)}`),
    h("span#episode-reward", "reward ", h("b", number(shown.reward)), shown.one_reward ? ", counted once" : ""),
    h(
      "span.rt-soft",
      `${plural(shown.n_rows, "row")}, ${number(trained)} trained${shown.n_rows > shown.rows.length ? `; the first ${number(shown.rows.length)} are drawn` : ""}`,
    ),
    !shown.one_reward &&
      h("p", "Its rows have different rewards. Groups and pass rates count the row that left no other."),
    shown.n_lost > 0 &&
      h(
        "p",
        `${plural(shown.n_lost, "row")} left one that is not in this step, or that cannot be told from the ledger: drawn without the link.`,
      ),
  );
}

function tree(opened) {
  const axis = spans(data.tree);
  const extras = data.tree.differs;
  const heads = [
    "branch",
    "how it left",
    "trained",
    ...(data.tree.one_reward ? [] : ["reward"]),
    "advantage",
    "sampled",
    "turns",
    ...(stops() ? ["stop"] : []),
    ...extras.map(key => key.replace("extra/", "")),
  ];
  return h(
    "div.rt-tree",
    { tabindex: "0", "aria-label": "Branches" },
    table(
      { testid: "branches" },
      [
        heads.map(inert),
        `the way through ${axis.unit === "seconds" ? `time, ${seconds(axis.end)}` : "tokens"}`,
        "flags",
      ],
      data.tree.rows,
      row => branchRow(row, opened, axis, extras),
    ),
    h(
      "p.rt-tree-legend",
      axis.unit === "seconds"
        ? "From each row's own start."
        : "When rows began was not logged: a row begins where it left the other, its shared beginning hollow.",
    ),
  );
}

function stops() {
  return data.tree.rows.some(row => row.values.stop_reason);
}

function branchRow(row, opened, axis, extras) {
  const v = row.values;
  const indent = row.depth ? `${"  ".repeat(row.depth - 1)}└ ` : "";
  const name = row.id
    ? ghost(nameOf(row), () => choose(row), { testid: "open-branch" })
    : h("span.rt-faint", { title: "Not kept as a trace" }, nameOf(row));
  return h(
    "tr",
    { dataset: { kind: row.left.kind }, "aria-current": row === opened ? "true" : null },
    h("td", h("span.rt-depth", indent), name),
    h("td", howItLeft(row)),
    h(
      "td",
      v.trained === 1
        ? h("span.rt-chip.rt-chip-info", "trained")
        : v.trained === 0
          ? h(
              "span.rt-faint",
              v.discard_reason ? inert(String(v.discard_reason)).replaceAll("_", " ") : "not in the loss",
            )
          : "",
    ),
    data.tree.one_reward ? null : numberCell(v.reward),
    numberCell(v.advantage, signed),
    numberCell(v.n_sampled),
    numberCell(v.n_turns),
    stops() ? h("td", v.stop_reason ? inert(String(v.stop_reason)) : "") : null,
    extras.map(key =>
      h(
        "td",
        row.extras[key] === undefined || row.extras[key] === null ? "" : inert(String(row.extras[key]).slice(0, 40)),
      ),
    ),
    h("td.rt-way", strip(row, axis)),
    h("td", flagChips(row.flags, data.severities, 2)),
  );
}

function howItLeft(row) {
  const { kind, shared, left_at: turn } = row.left;
  const where = [turn === null ? null : `turn ${turn}`, shared ? `${number(shared)} tokens shared` : null]
    .filter(Boolean)
    .join(", ");
  return h("span", { title: data.kinds[kind] }, h("b", NAMES[kind]), where ? h("span.rt-faint", ` ${where}`) : null);
}

function open(row, below) {
  const wanted = JSON.stringify([shownFor, row.group, row.sample]);
  if (wanted === openedFor && below.firstChild) return;
  openedFor = wanted;
  view?.forget();
  view = null;
  if (!row.id) {
    replace(
      below,
      notice(
        "info",
        "This branch was not kept",
        "Its figures are the ledger's; raise max_rollout_traces_per_step to keep more of a step.",
      ),
    );
    return;
  }
  newestRow(
    call("rollout", { ...state.placeAtStep(state.get()), id: row.id }),
    rollout => show(rollout, row, below),
    error => replace(below, notice("error", "This branch could not be opened", error.message)),
  );
}

function show(rollout, row, below) {
  const scroller = part(".rt-episodes-main");
  view = new TranscriptView(
    rollout,
    {
      scroller,
      image: number => call("image", { project: state.get().project, id: rollout.id, number }),
      onChange: ({ token, ...patch }) => state.set(lookPatch(patch)),
    },
    lookOf(state.get()),
  );
  const parent = data.tree.rows.find(each => each.at === row.parent);
  replace(
    below,
    h(
      "header.rt-branch-head",
      h("h2", nameOf(row)),
      howItLeft(row),
      parent &&
        button(
          `back to ${nameOf(parent)}${row.left.left_at === null ? "" : `, turn ${row.left.left_at}`}`,
          () => choose(parent, row.left.left_at),
          { testid: "to-parent" },
        ),
      ghost("open under Rollouts", () =>
        state.set({ page: "rollouts", group: row.group, sample: row.sample, episode: null }),
      ),
    ),
    view.root,
  );
  for (const child of data.tree.rows.filter(each => each.parent === row.at)) linkTurns(child);
  if (wantedTurn !== null) view.goToTurn(wantedTurn);
  wantedTurn = null;
}

// Marks the turns at which another row left this one, and came back.
function linkTurns(child) {
  const mark = (index, words, turn) => {
    const card = index === null ? null : view.turnCards[index];
    if (!card) return;
    let links = card.root.querySelector(".rt-branch-links");
    if (!links) {
      links = h("div.rt-branch-links");
      card.root.querySelector(".rt-turn-head").after(links);
    }
    links.append(ghost(`${words} ${nameOf(child)}`, () => choose(child, turn), { testid: "turn-link" }));
  };
  mark(child.left.left_at, `${NAMES[child.left.kind]} →`, null);
  if (child.left.back_at !== child.left.left_at) mark(child.left.back_at, "answer of", child.turns.length - 1);
}
