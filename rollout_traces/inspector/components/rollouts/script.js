// The page to read rollouts: steps and samples on the left, the conversation, charts on the right.

import { ghost, h, notice, replace, segmented, select } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { usualLine } from "../../lib/flags.js";
import { isNamed, placed } from "../../lib/going.js";
import { shortcut } from "../../lib/keyboard.js";
import { catalog, kept, mounted, runOf, setPopulation, splitOf } from "../../lib/pages.js";
import { latest, soon } from "../../lib/remote.js";
import { isStatic, shareButton } from "../../lib/share.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { Charts, chartsOf, rememberedCharts } from "../charts/script.js";
import { buildFilterBar } from "../filter_bar/script.js";
import { Labels } from "../labels/script.js";
import { timeline } from "../lanes/of_rollout.js";
import { rolloutHeader } from "../rollout_header/script.js";
import { SORTS, drawSamples, mark } from "../samples/script.js";
import { Selection } from "../samples/selection.js";
import { drawStepPager, move, nearest, toggleFollow } from "../step_pager/script.js";
import { Marks } from "../../lib/highlight.js";
import { LOOK_KEYS, lookOf, lookPatch, readingKeys } from "../transcript/keys.js";
import { TranscriptView } from "../transcript/script.js";
import { viewersOf } from "../viewers/script.js";

const LIST_KEYS = ["project", "run", "split", "step", "where", "text", "sort", "scope"];
const CHART_KEYS = ["project", "run", "split", "charts"];
const OPEN_KEYS = ["project", "run", "split", "step", "group", "sample", "id"];

let call;
let root;
let filterBar;
let charts;
let list = null;
let listFor = "";
let chartsFor = "";
let rollout = null;
let rolloutFor = "";
let shownRolloutFor = "";
let ahead = null;
let named = null;
let view = null;
let marks = null;
let labels = null;
let selection = null;
let shownPlace = "";
// After another run or split was chosen, group and sample are where to look, not what was asked for.
let wish = false;
// What was just filtered or searched for: the first that matches is opened where the rollout that is open does not.
let searched = false;
const newestList = latest();
const newestRollout = latest();
const newestCharts = latest();

const part = selector => root.querySelector(selector);

export function mount(element, server) {
  [root, call] = mounted("rollouts", element, server, { update, news, askAhead });
  filterBar = buildFilterBar({ columns: () => list?.columns || [] });
  part(".rt-filter-slot").append(filterBar.root);
  charts = new Charts(part(".rt-right"));
  selection = new Selection(part(".rt-selection"), part(".rt-left-list"), {
    call,
    request: () => state.placeOf(state.get()),
    listed: () => cards().map(card => card.id),
    labels: () => (rollout?.labels?.may_label && !isStatic() ? rollout.labels : null),
    compare: (a, b) => state.set({ page: "compare", a, b }),
    changed: () => {
      loadList(state.get(), listFor, { quiet: true });
      labels?.again();
    },
  });
  part(".rt-list-toggle").addEventListener("click", () =>
    showListOnPhone(!part(".rt-columns").classList.contains("rt-list-open")),
  );
  keys();
}

function update(now, changed) {
  drawStepPager(part(".rt-step-pager"), now);
  filterBar.update(now);
  drawSort(now);
  const steps = splitOf(now)?.steps || [];
  if (!steps.length) return nothingYet(now);
  if (now.step === undefined || Number.isNaN(Number(now.step)))
    return state.set({ step: steps.at(-1) }, { fill: true });
  const place = state.valuesOf(now, ["project", "run", "split"]);
  wish = wish || (shownPlace !== "" && shownPlace !== place);
  shownPlace = place;
  if (wish) selection.clear();
  if (wish && !steps.includes(Number(now.step)))
    return state.set(
      { step: nearest(steps, Number(now.step)), group: now.group ?? null, sample: now.sample ?? null },
      { fill: true },
    );
  const wanted = state.valuesOf(now, LIST_KEYS);
  if (wanted !== listFor) {
    searched ||= (now.text || now.where) && (changed.has("text") || changed.has("where")) && rollout !== null;
    if (now.id !== undefined || now.sample !== undefined) openNamed(now);
    loadList(now, wanted);
  } else if (OPEN_KEYS.some(key => changed.has(key))) openWanted(now);
  if (state.valuesOf(now, CHART_KEYS) !== chartsFor) loadCharts(now);
  else if (["step", "smooth", "axis", "log"].some(key => changed.has(key))) charts.draw();
  if (shownRolloutFor !== rolloutFor) return undefined; // the one that is named is on its way, and comes as it should look
  if (view && LOOK_KEYS.some(key => changed.has(key))) view.setLook(lookOf(now));
  if ((changed.has("a") || changed.has("mark")) && rollout) part(".rt-rollout-head")?.replaceWith(header());
  if (changed.has("viewer") && rollout) part(".rt-viewers")?.replaceWith(ownViews());
  if ((changed.has("text") || changed.has("mark")) && marks) marks.set(now.text || "", now.mark || "");
  if (changed.has("token") && now.token !== undefined && view) view.goTo(Number(now.token));
  return undefined;
}

// New rows arrived while the page is open: follow, or refresh in place.
function news(now) {
  const steps = splitOf(now)?.steps || [];
  if (!steps.length) return;
  if (now.step === undefined) return update(now, new Set(state.KEYS));
  if (now.follow && Number(now.step) !== steps.at(-1)) return state.set({ step: steps.at(-1) });
  drawStepPager(part(".rt-step-pager"), now);
  loadList(now, state.valuesOf(now, LIST_KEYS), { quiet: true });
  labels?.again();
  loadCharts(now);
}

function nothingYet(now) {
  listFor = "";
  replace(part(".rt-left-list"));
  filterBar.matched(null);
  const split = splitOf(now);
  const isMissing = now.run && catalog.runs.length && !runOf(now);
  setPopulation("rollouts", isMissing ? `No run ${inert(now.run)}.` : "No rollouts kept yet.");
  if (isMissing) {
    chartsFor = "";
    charts.clear();
    return replace(
      part(".rt-middle"),
      notice(
        "error",
        `No run ${inert(now.run)} in this project`,
        `Runs: ${catalog.runs.map(run => inert(run.name)).join(", ")}.`,
      ),
    );
  }
  replace(
    part(".rt-middle"),
    notice(
      "info",
      catalog.runs.length ? "No rollouts in this run yet" : "Nothing was logged to this project yet",
      split || catalog.runs.length
        ? "They appear here by themselves once the run logs its first step."
        : "Start a run that logs to it; the page fills by itself.",
      [
        "In the trainer’s config: ",
        h("code", "stats_logger.trackio.max_rollout_traces_per_step: 32"),
        ", or in Python: ",
        h("code", "RolloutLogger(project=…, tokenizer=…).log_rollouts(batch, step=…)"),
        ". A cap of 0 keeps no rollouts.",
      ],
    ),
  );
  return loadCharts(now);
}

function askList(now, after = "") {
  const { where = "", text = "", sort = "", scope = "step" } = now;
  return call("samples", { ...state.placeAtStep(now), where, text, sort, scope, after });
}

function loadList(now, wanted, { quiet = false } = {}) {
  listFor = wanted;
  if (!list && !quiet) replace(part(".rt-left-list"), h("div.rt-loading", "Loading…"));
  newestList(
    afterNamed(() => askList(now)),
    data => {
      filterBar.error(null);
      list = data;
      drawList();
      if (!quiet) {
        part(".rt-left-list").scrollTop = 0;
        if (!now.sort) mark(part(".rt-left-list"), rollout?.id);
      }
      population(data);
      if (searched) openHit({ fill: true });
      searched = false;
      openWanted(state.get());
    },
    error => {
      setPopulation("rollouts");
      if (error.kind === "QueryError") {
        filterBar.error(error);
        list = null;
        replace(
          part(".rt-left-list"),
          h("div.rt-empty", h("b", "The filter cannot be read."), h("p", "Mend the marked place, or clear it.")),
        );
        if (!rollout)
          replace(part(".rt-middle"), notice("info", "The filter cannot be read", error.message.split("\n")[0]));
      } else replace(part(".rt-left-list"), notice("error", "The list could not be read", error.message));
    },
  );
}

function drawList() {
  const now = state.get();
  requestAnimationFrame(() => selection.ids.size && selection.again());
  drawSamples(part(".rt-left-list"), list, {
    selectedId: rollout?.id,
    text: now.text || "",
    open,
    showStep: now.scope === "all",
    sortedBy: sortedBy(now.sort),
    scope: now.scope,
    openGroup: isStatic() ? null : group => state.set({ page: "group", group, sample: null, id: null }),
    filtered: Boolean(now.where || now.text),
    widen: () => state.set({ scope: "all" }),
    more: async after => {
      const next = await askList(now, after);
      list = { ...next, samples: [...list.samples, ...next.samples] };
      drawList();
    },
  });
}

// What the list is sorted by, where a card does not show it anyway.
function sortedBy(sort) {
  const [name] = (sort || "").replace(/^[-+]/, "").split(/[\s,]/);
  return ["", "reward"].includes(name) ? null : name.replaceAll("_", " ");
}

function population(data) {
  const { where, text } = state.get();
  filterBar.matched(where || text ? data.n_matched : null);
  setPopulation(
    "rollouts",
    kept(
      data,
      data.scope === "all" ? " over all steps" : ` at step ${number(data.step)}`,
      data.note,
      where || text ? `${number(data.n_matched)} match` : null,
    ),
    data.usual?.length ? ` · ${usualLine(data.usual)}` : "",
  );
}

// Drawn once, so that a select or button that has the focus keeps it.
function drawSort(now) {
  const slot = part(".rt-left-sort");
  if (!slot.childElementCount) replace(slot, orders(), scopes());
  slot.querySelector("option").textContent = now.scope === "all" ? "by step" : SORTS[0][1];
  slot.querySelector("select").value = now.sort || "";
  for (const each of slot.querySelectorAll("button"))
    each.setAttribute("aria-pressed", String(each.value === (now.scope || "step")));
}

function orders() {
  return select(SORTS, null, sort => state.set({ sort: sort || null }), {
    "aria-label": "Order",
    testid: "sort-select",
  });
}

function scopes() {
  const choose = scope => state.set({ scope: scope === "all" ? "all" : null });
  return segmented("Which steps", null, Object.entries({ step: "this step", all: "all steps" }), choose, "scope");
}

function cards() {
  if (!list) return [];
  return list.groups ? list.groups.flatMap(group => group.samples) : list.samples;
}

// The card of what the address names.
function cardOf(now) {
  return cards().find(each => isNamed(each, now));
}

// Opens the first rollout that matches, where the one that is open does not. True where it did.
function openHit(options) {
  const [first] = cards();
  if (!first || cards().some(card => card.id === rollout?.id)) return false;
  state.set({ ...placed(first), token: null, follow: null }, options);
  return true;
}

function goToMark(by) {
  if (!(state.get().text && openHit())) marks?.step(by);
}

// A narrow window shows the list or the rollout, not both.
function showListOnPhone(shown) {
  part(".rt-columns").classList.toggle("rt-list-open", shown);
  part(".rt-list-toggle").setAttribute("aria-expanded", String(shown));
}

function open(card, event) {
  if (event && !isStatic() && selection.clicked(card.id, event)) return;
  showListOnPhone(false);
  state.set({ ...placed(card), token: null, follow: null });
}

function openWanted(now) {
  if (wish && list) {
    wish = false;
    const inGroup = cards().filter(card => String(card.group) === now.group);
    const same = inGroup.find(card => String(card.sample) === now.sample) || inGroup[0] || cards()[0];
    if (same && (String(same.group) !== now.group || String(same.sample) !== now.sample))
      return state.set(placed(same), { fill: true });
  }
  if (now.id === undefined && now.sample === undefined) {
    const inGroup = cards().filter(card => now.group === undefined || String(card.group) === now.group);
    const first = inGroup[0] || cards()[0];
    if (first) return state.set(placed(first), { fill: true });
    rolloutFor = "";
    rollout = null;
    return replace(part(".rt-middle"), nothingListed(now));
  }
  return openNamed(now);
}

function nothingListed(now) {
  const steps = splitOf(now)?.steps || [];
  if (now.scope !== "all" && steps.length && !steps.includes(Number(now.step)))
    return notice(
      "info",
      `No rollouts were logged at step ${inert(now.step)}`,
      `Steps of this split: ${number(steps[0])} to ${number(steps.at(-1))}.`,
    );
  if (list && !list.n_traced)
    return notice(
      "info",
      "No rollout of this step was kept",
      "The ledger has all of them: see Explore. To keep some, raise max_rollout_traces_per_step.",
    );
  const further = now.scope === "all" ? "" : ", or search all steps";
  return notice("info", "Nothing matches", `Change the filter${further}.`);
}

function askRollout(now, id) {
  return call("rollout", {
    ...state.placeAtStep(now),
    id: id || now.id || null,
    group: now.group ?? null,
    sample: now.sample ?? null,
  });
}

// The address names a rollout of a project that is only being opened: its answer is on the way meanwhile.
function askAhead(now) {
  if (!now.run || !now.split || now.step === undefined || (now.id === undefined && now.sample === undefined))
    return null;
  ahead = { wanted: state.valuesOf(now, OPEN_KEYS), answer: askRollout(now) };
  named = soon(ahead.answer)
    .then(() => new Promise(resolve => setTimeout(resolve)))
    .then(() => {
      named = null;
    });
  return ahead.answer;
}

// What is around a rollout that the address names is asked for once that rollout is drawn.
function afterNamed(ask) {
  return named ? named.then(ask) : ask();
}

// In another run or split it is asked for beside the list, which may then say that another one is the nearest.
function openNamed(now) {
  const wanted = state.valuesOf(now, OPEN_KEYS);
  if (wanted === rolloutFor) return undefined;
  rolloutFor = wanted;
  const early = ahead?.wanted === wanted ? ahead.answer : null;
  ahead = null;
  const card = wish ? null : cardOf(now);
  const ask = () => askRollout(now, card?.id);
  const showIfStillNamed = data => {
    if (state.valuesOf(state.get(), OPEN_KEYS) === wanted) return show(data);
    rolloutFor = ""; // the address names another one by now, which is asked for when its project is open
    return undefined;
  };
  return newestRollout(early ? early.catch(ask) : ask(), showIfStillNamed, error => {
    rollout = null;
    if (wish) {
      rolloutFor = "";
      return;
    }
    replace(part(".rt-middle"), notice("error", "This rollout could not be opened", error.message));
  });
}

function show(data) {
  const now = state.get();
  view?.forget();
  rollout = data;
  shownRolloutFor = rolloutFor;
  const middle = part(".rt-middle");
  view = new TranscriptView(
    data,
    {
      scroller: middle,
      onChange: lookChanged,
      around: what => around(what, data),
      image: number => call("image", { project: state.get().project, id: data.id, number }),
    },
    lookOf(now),
  );
  labels = new Labels(data, {
    call,
    request: () => state.placeAtStep(state.get()),
    view: () => view,
    token: () => state.get().token,
  });
  replace(middle, header(), isStatic() ? null : timelineOf(data, now), ownViews(), view.root);
  middle.scrollTop = 0;
  mark(part(".rt-left-list"), data.id);
  marks?.forget();
  marks = new Marks(view.turnsRoot);
  marks.set(now.text || "", now.mark || "");
  if (now.mark || (now.text && now.token === undefined)) requestAnimationFrame(() => marks?.step(1));
  if (now.token !== undefined) view.goTo(Number(now.token));
  performance.mark("rt-rollout-shown");
  goToPlaceOf(data, now);
}

function timelineOf(data, now) {
  const sampled = data.turns.flatMap((turn, index) => (turn.role === "assistant" ? [index] : []));
  return timeline(data, {
    call,
    request: { ...state.placeAtStep(now), step: data.metadata.step ?? Number(now.step) },
    goTo: turn => sampled[turn] !== undefined && view.goToTurn(sampled[turn]),
    open: ({ step, group, sample }) => state.set({ step, group, sample, id: null, token: null }),
  });
}

// A rollout that was opened by its id alone, as from an explanation, has its step in the list and the charts, and its
// group under Compare and Group.
function goToPlaceOf({ id, metadata: { step, group } }, now) {
  if (now.id !== id || !splitOf(now)?.steps.includes(step)) return;
  if (String(step) === now.step && String(group) === String(now.group)) return;
  const patch = { step, group, id, mark: now.mark, token: now.token };
  rolloutFor = shownRolloutFor = state.valuesOf(state.apply(now, patch), OPEN_KEYS); // it is drawn already
  state.set(patch, { fill: true });
}

// Views of one's own beside the conversation.
function ownViews() {
  const now = state.get();
  return viewersOf(call, state.placeOf(now), rollout.id, now.viewer, viewer => state.set({ viewer }));
}

// What an overlay needs of the rollout's group or step.
async function around(what, data) {
  const { step = null, group = null } = data.metadata;
  if (what === "group" && group === null)
    throw new Error("This rollout belongs to no group, so nothing can cancel in it.");
  return call(what === "group" ? "group_pushes" : "step_means", { ...state.placeAtStep(state.get()), step, group });
}

function header() {
  const { mark: phrase, a } = state.get();
  const head = rolloutHeader(rollout, {
    labels: labels.root,
    rawRecord: isStatic() ? null : () => call("raw_record", { project: state.get().project, id: rollout.id }),
    compare: isStatic() ? null : compare,
    pin,
    share: shareButton(call, () => ({ ...state.placeAtStep(state.get()), what: "rollout", id: rollout.id })),
    pinned: a || null,
    showFlag: flag => view.showFlag(flag),
    episode: () => state.set({ page: "episodes", episode: rollout.metadata.episode }),
  });
  if (phrase)
    head.append(
      h(
        "div.rt-marked#marked",
        h("mark.rt-phrase", inert(phrase)),
        h("span.rt-soft", "marked below, n goes on "),
        ghost("unmark", () => state.set({ mark: null })),
      ),
    );
  return head;
}

// Pinned for comparing with another rollout, of any step.
function pin() {
  if (rollout) state.set({ a: state.get().a === rollout.id ? null : rollout.id, b: null }, { fill: true });
}

function lookChanged(patch) {
  state.set(lookPatch(patch), { fill: "token" in patch });
}

function loadCharts(now) {
  chartsFor = state.valuesOf(now, CHART_KEYS);
  const names = chartsOf(now.charts || rememberedCharts(now.project).join(",")).flat();
  newestCharts(
    afterNamed(() => call("metrics", { ...state.placeAtStep(now), names })),
    data => charts.setData(data),
    error => charts.fail(error),
  );
}

function compare() {
  if (!rollout) return;
  const pinned = state.get().a;
  state.set(
    pinned && pinned !== rollout.id ? { page: "compare", b: rollout.id } : { page: "compare", a: null, b: null },
  );
}

function step(by) {
  const all = cards();
  if (!all.length) return;
  const at = all.findIndex(card => card.id === rollout?.id);
  open(all[Math.min(Math.max(at + by, 0), all.length - 1)]);
}

function stepGroup(by) {
  if (!list?.groups) return step(by);
  const at = list.groups.findIndex(group => group.samples.some(card => card.id === rollout?.id));
  const next = list.groups[Math.min(Math.max(at + by, 0), list.groups.length - 1)];
  if (next?.samples.length) open(next.samples[0]);
}

function chooseOpen() {
  const id = cardOf(state.get())?.id ?? rollout?.id;
  if (id) selection.toggle(id);
}

function keys() {
  readingKeys("rollouts", { scroller: () => part(".rt-middle"), view: () => view, change: lookChanged });
  const steps = { page: "rollouts", section: "Steps" };
  const samples = { page: "rollouts", section: "Rollouts" };
  shortcut(["[", "ArrowLeft"], "Previous step", () => move(-1), steps);
  shortcut(["]", "ArrowRight"], "Next step", () => move(1), steps);
  shortcut("{", "First step", () => move(-1e9), steps);
  shortcut("}", "Last step", () => move(1e9), steps);
  shortcut("g", "Type a step", () => part(".rt-step-number").focus(), steps);
  shortcut("l", "Follow the latest step", toggleFollow, steps);
  shortcut("j", "Next rollout", () => step(1), samples);
  shortcut("k", "Previous rollout", () => step(-1), samples);
  shortcut("J", "Next group", () => stepGroup(1), samples);
  shortcut("K", "Previous group", () => stepGroup(-1), samples);
  shortcut("f", "Filter", () => filterBar.focusFilter(), samples);
  shortcut("/", "Search the text", () => filterBar.focusSearch(), samples);
  shortcut("n", "Next place that was searched for or is marked", () => goToMark(1), samples);
  shortcut("N", "Previous place that was searched for or is marked", () => goToMark(-1), samples);
  if (isStatic()) return;
  shortcut("c", "Compare with the pinned one, or best and worst of the group", compare, samples);
  shortcut("q", "Label it, the selected tokens or the turn gone to", () => labels?.ask("label"), samples);
  shortcut("u", "Write a note", () => labels?.ask("note"), samples);
  shortcut("s", "Choose it, to label, compare or export several (Ctrl or Shift and a click)", chooseOpen, samples);
  shortcut("S", "Choose all that are listed", () => selection.all(), samples);
  shortcut("x", "Pin it, to compare with another", pin, samples);
}
