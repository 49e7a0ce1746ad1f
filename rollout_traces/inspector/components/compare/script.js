// Two rollouts side by side: the shared prefix folded, the first divergent token marked, what differs.

import { ghost, h, notice, replace, select, table } from "../../lib/dom.js";
import { number, percent, plural, shown, signed } from "../../lib/format.js";
import { rewardColour } from "../../lib/colour.js";
import { shortcut } from "../../lib/keyboard.js";
import { placed } from "../../lib/going.js";
import { askPopulation, catalog, mounted, setPopulation, splitOf } from "../../lib/pages.js";
import { latest } from "../../lib/remote.js";
import { shareButton } from "../../lib/share.js";
import * as state from "../../lib/state.js";
import { grouped } from "../../lib/flags.js";
import { inert } from "../../lib/text.js";
import { headline, selectedSentence } from "../rollout_header/script.js";
import { LOOK_KEYS, lookOf, lookPatch } from "../transcript/keys.js";
import { TranscriptView } from "../transcript/script.js";

const KEYS = ["project", "run", "split", "step", "group", "a", "b"];

let call;
let root;
let shownFor = "";
let views = [];
let data = null;
const newest = latest();
const newestHistory = latest();
const slot = () => root.querySelector(".rt-compare");

export function mount(element, server) {
  [root, call] = mounted("compare", element, server, { update });
  const here = { page: "compare", section: "Compare" };
  shortcut("s", "Swap the sides", swap, here);
  shortcut("d", "Go to the first difference", goToDivergence, here);
  shortcut(
    "v",
    "Read or tokens",
    () => lookChanged(views[0]?.mode() === "tokens" ? { view: null, overlay: null } : { view: "tokens" }),
    here,
  );
}

function update(now, changed) {
  const steps = splitOf(now)?.steps || [];
  if (now.step === undefined && steps.length && !(now.a && now.b))
    return state.set({ step: steps.at(-1) }, { fill: true });
  const wanted = state.valuesOf(now, KEYS);
  if (wanted !== shownFor) load(now, wanted);
  else if (LOOK_KEYS.some(key => changed.has(key))) for (const view of views) view.setLook(lookOf(now));
  return undefined;
}

function asked(now) {
  return { ...state.placeAtStep(now), group: now.group ?? null, a: now.a || null, b: now.b || null };
}

function load(now, wanted) {
  shownFor = wanted;
  setPopulation("compare");
  if (!data) replace(slot(), h("div.rt-loading", "Loading…"));
  newest(
    call("compare", asked(now)),
    answer => {
      draw(answer);
      population(now, now.step ?? answer.sides[0].metadata.step);
    },
    error => {
      data = null;
      replace(
        slot(),
        notice(
          "info",
          "Nothing to compare yet",
          error.message,
          h("a", state.link({ page: "rollouts" }), "To the rollouts"),
        ),
      );
      population(now, now.step);
    },
  );
}

function population(now, step) {
  if (step === undefined) return setPopulation("compare");
  return askPopulation("compare", call, { ...asked(now), step: Number(step) });
}

function draw(answer) {
  const now = state.get();
  for (const view of views) view.forget();
  data = answer;
  const scroller = slot();
  views = answer.sides.map(
    (side, at) =>
      new TranscriptView(
        side,
        {
          scroller,
          onChange: lookChanged,
          image: number => call("image", { project: now.project, id: side.id, number }),
          beside: answer.sides[1 - at].tokens,
          markFlags: false,
        },
        lookOf(now),
      ),
  );
  const history = h("div.rt-history");
  replace(
    scroller,
    h("div.rt-compare-top", sideHead(answer, 0), deltaTable(answer), sideHead(answer, 1)),
    history,
    h(
      "div.rt-compare-bar",
      views[0].toolbar,
      divergenceChip(answer),
      shareButton(call, () => ({ ...asked(now), what: "compare", a: answer.sides[0].id, b: answer.sides[1].id })),
    ),
    h.each("div.rt-compare-columns", views, (view, at) => column(view, answer, at)),
  );
  scroller.scrollTop = 0;
  if (now.at === "difference") requestAnimationFrame(goToDivergence);
  loadHistory(now, answer, history);
}

function sideHead(answer, at) {
  const side = answer.sides[at];
  const m = side.metadata;
  const key = at ? "b" : "a";
  const options = [...answer.candidates];
  if (!options.some(card => card.id === side.id))
    options.unshift({ id: side.id, step: m.step, group: m.group, sample: m.sample, reward: m.reward });
  return h(
    "section.rt-side-head",
    headline(
      m,
      answer.range,
      at ? "B · " : "A · ",
      h(
        "div.rt-headline-title",
        select(
          options.map(card => [
            card.id,
            `step ${number(card.step)} · g${number(card.group)} #${number(card.sample)} · reward ${number(card.reward)}`,
          ]),
          side.id,
          id => state.set({ a: answer.sides[0].id, b: answer.sides[1].id, [key]: id }),
          { "aria-label": `Rollout ${key.toUpperCase()}`, testid: `compare-pick-${key}` },
        ),
        h(
          "div.rt-soft.rt-side-run",
          { testid: `compare-run-${key}` },
          side.run ? [h("b", inert(side.run)), ` · ${inert(String(m.split ?? ""))} · `] : null,
          h("span.rt-faint", selectedSentence(m)),
        ),
      ),
    ),
    h(
      "div.rt-side-flags",
      grouped(side.flags).map(entry =>
        h(
          "button#flag",
          {
            class: `rt-chip rt-chip-${entry.severity}`,
            title: inert(entry.message),
            onclick: () => views[at].showFlag(entry.flags[0]),
          },
          entry.name.replaceAll("_", " "),
          entry.flags.length > 1 ? ` \u00d7${entry.flags.length}` : "",
          side.explains?.[entry.name] &&
            h("span.rt-faint#explains", ` explains ${side.explains[entry.name].join(", ").replaceAll("_", " ")}`),
        ),
      ),
      side.usual_flags?.length > 0 &&
        h(
          "span.rt-faint#usual-flags",
          { title: "Properties of the run or of the group, not of this rollout" },
          `usual in the run, or of the whole group: ${side.usual_flags.join(", ").replaceAll("_", " ")}`,
        ),
    ),
    h("a.rt-side-open", state.link({ page: "rollouts", ...ofSide(side) }), "open under Rollouts"),
  );
}

// Where a side is: perhaps in another run or split.
function ofSide({ id, metadata }) {
  const run = catalog.runs.find(each => id.startsWith(`${each.id}:`))?.name ?? state.get().run;
  return { run, split: metadata.split, ...placed({ ...metadata, id }), a: null, b: null };
}

// Only of these does more mean better.
function judged(name) {
  return ["reward", "raw_reward", "advantage", "success"].includes(name) || name.startsWith("component/");
}

function deltaTable(answer) {
  const same = answer.deltas.filter(row => row.a === row.b);
  const rows = answer.deltas.filter(row => row.a !== row.b);
  const line = row =>
    h(
      "tr",
      h("th", { title: row.name }, row.name.replace("component/", "").replaceAll("_", " ")),
      h("td", shown(row.a)),
      h("td", shown(row.b)),
      h(
        "td",
        { class: judged(row.name) ? (row.delta > 0 ? "rt-up" : "rt-down") : "" },
        row.delta === null ? "" : signed(row.delta),
      ),
    );
  return h(
    "section.rt-deltas#deltas",
    { tabindex: "0", "aria-label": "What differs" },
    table(null, [`${rows.length} differ`, "A", "B", "B − A"], rows, line),
    same.length > 0 &&
      h("p.rt-faint", `equal: ${same.map(row => row.name.replace("component/", "").replaceAll("_", " ")).join(", ")}`),
  );
}

function divergenceChip(answer) {
  if (answer.shared === null) {
    const where = answer.sides.some(side => side.tokens) ? "one" : "either";
    return h("span.rt-faint#no-divergence", `no token data on ${where} side: turns are shown whole`);
  }
  const identical = answer.sides.every(side => side.tokens.n === answer.shared);
  return ghost(
    identical
      ? `identical: all ${number(answer.shared)} tokens`
      : `first difference at token ${number(answer.shared)} (d)`,
    goToDivergence,
    { testid: "go-divergence", disabled: identical },
  );
}

function column(view, answer, at) {
  const { shared } = answer;
  const turns = answer.sides[at].turns;
  const whole = shared === null ? 0 : turns.filter(turn => turn.stop <= shared).length;
  const cards = view.turnCards.map(card => card.root);
  const folded = whole
    ? h(
        "details.rt-shared#shared-prefix",
        {
          open: answer.sides.every(side => side.tokens.n === shared),
          ontoggle: event => {
            for (const other of root.querySelectorAll(".rt-shared")) other.open = event.target.open;
          },
        },
        h("summary", `${plural(whole, "shared turn")}, ${plural(turns[whole - 1].stop, "token")}`),
        h("div.rt-turns", cards.slice(0, whole)),
      )
    : null;
  if (shared !== null && whole < turns.length) {
    const card = view.turnCards[whole];
    card.raw = true;
    card.draw();
    card.body.before(
      h(
        "div.rt-divergence#first-divergence",
        shared > turns[whole].start
          ? `the first ${plural(shared - turns[whole].start, "token")} of this turn are shared; they part at token ${number(shared)}`
          : `they part at token ${number(shared)}`,
      ),
    );
    if (view.tokenText) view.tokenText.restyle({ divergence: shared });
  }
  if (shared === null && firstDifferent(answer) < turns.length) {
    view.turnCards[firstDifferent(answer)].body.before(
      h("div.rt-divergence#first-divergence", "the first turn that differs"),
    );
  }
  const ended =
    shared !== null && whole === turns.length && answer.sides.some(side => side.tokens.n > shared)
      ? h(
          "div.rt-divergence.rt-ends-here#first-divergence",
          `this rollout ends here, after ${plural(shared, "token")}; the other goes on`,
        )
      : null;
  replace(view.turnsRoot, folded, cards.slice(whole), ended);
  return h(
    "section.rt-compare-column",
    { testid: at ? "compare-right" : "compare-left" },
    view.legendSlot,
    view.turnsRoot,
  );
}

// Without token data: the first turn whose role, text or calls differ.
function firstDifferent(answer) {
  const [a, b] = answer.sides.map(side =>
    side.turns.map(turn => JSON.stringify([turn.role, turn.content, turn.thinking, turn.tool_calls])),
  );
  const at = a.findIndex((turn, i) => turn !== b[i]);
  return at < 0 ? a.length : at;
}

function goToDivergence() {
  root.querySelector("[data-testid=first-divergence]")?.scrollIntoView({ block: "center" });
}

function swap() {
  if (data) state.set({ a: data.sides[1].id, b: data.sides[0].id });
}

const lookChanged = ({ token, ...patch }) => state.set(lookPatch(patch));

// The same prompt over the steps: a strip of mean rewards; a click puts that step's best on the right.
function loadHistory(now, answer, node) {
  const key = answer.sides[0].metadata.prompt_key;
  if (!key) return;
  newestHistory(
    call("prompt_history", { ...asked(now), prompt_key: String(key) }),
    history => {
      if (history.steps.length < 2) return;
      replace(
        node,
        h("span.rt-label", `this prompt at ${history.steps.length} steps`),
        h.each("div.rt-history-strip#prompt-history", history.steps, each =>
          h("button", {
            class: each.step === answer.sides[0].metadata.step ? "rt-here" : "",
            style: { "--dot": rewardColour(each.reward, history.range) },
            title: `step ${number(each.step)}: mean reward ${number(each.reward)}${each.pass_rate === null ? "" : `, ${percent(each.pass_rate)} solved`}, ${plural(each.n, "rollout")}, ${each.traced.length} kept`,
            "aria-label": `step ${each.step}`,
            disabled: !each.traced.length,
            onclick: () => openStep(now, answer, each),
          }),
        ),
      );
    },
    () => replace(node),
  );
}

async function openStep(now, answer, each) {
  const ofStep = { ...asked(now), step: each.step, group: each.group, a: null, b: null };
  const other = await call("compare", ofStep).catch(() => null);
  const best = other?.sides[0];
  if (best) state.set({ a: answer.sides[0].id, b: best.id });
}
