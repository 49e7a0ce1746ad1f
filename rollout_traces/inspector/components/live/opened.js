// One rollout in flight: its stages so far, the words of each, the newest last; and the way to where it is stored.

import { button, ghost, h, replace } from "../../lib/dom.js";
import { number, plural } from "../../lib/format.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";

const FATES = { running: "in flight", lost: "was running", done: "done", aborted: "aborted" };

export function opened(side, { rollout, stages, n_gone }) {
  if (!side) return;
  const atEnd = side.scrollHeight - side.scrollTop - side.clientHeight < 40;
  const keep = side.scrollTop;
  replace(
    side,
    h(
      "header.rt-flight-opened-head",
      h("h2", `${FATES[rollout.fate]} · ${duration(rollout.seconds)}`),
      rollout.is_stored ? landed(rollout) : null,
      ghost("×", () => state.set({ live: null }), { "aria-label": "Close" }),
    ),
    h("p.rt-faint", facts(rollout)),
    h("pre.rt-flight-text", inert(rollout.prompt || "")),
    n_gone ? h("p.rt-faint", `${plural(n_gone, "earlier stage")} not kept`) : null,
    h.each("ol.rt-flight-stages", stages, (each, at) =>
      stage(each, stages[at - 1], at === stages.length - 1 && rollout.fate === "running"),
    ),
  );
  side.scrollTop = atEnd ? side.scrollHeight : keep;
}

const facts = each =>
  [
    each.step === null ? null : `step ${number(each.step)}`,
    each.split && inert(each.split),
    each.source && inert(each.source),
    each.group && `group ${inert(each.group)}`,
    each.turns === null ? null : plural(each.turns, "turn"),
    each.tokens === null ? null : plural(each.tokens, "token"),
    `rank ${each.rank} on ${inert(each.node)}`,
    each.fate === "running" ? `last word ${duration(each.silent)} ago` : null,
    each.id,
  ]
    .filter(Boolean)
    .join(" · ");

// Words and tokens stand where they are new.
function stage(each, before, isNow) {
  const isEnd = ["done", "aborted"].includes(each.stage);
  return h(
    "li",
    { class: isNow ? "rt-flight-now" : null },
    h("b", each.stage),
    each.detail ? ` ${inert(each.detail)}` : "",
    h("span.rt-faint", ` at ${duration(each.began)}${isEnd ? "" : ` for ${duration(each.seconds)}`}`),
    each.tokens !== null &&
      each.tokens !== before?.tokens &&
      h("span.rt-faint", ` · ${plural(each.tokens, "token")} by then`),
    each.words && each.words !== before?.words ? h("pre.rt-flight-text", inert(each.words)) : null,
  );
}

// How long something takes while one looks: whole seconds, then minutes and hours, short enough for a narrow column.
export function duration(seconds) {
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes}:${String(Math.floor(seconds % 60)).padStart(2, "0")} min`;
  return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")} h`;
}

// The way to the stored rollout; where it has no trace, to its row.
export function landed(each) {
  const patch = each.trace
    ? { page: "rollouts", id: each.trace, live: null }
    : { page: "explore", where: `extra/live = '${each.id}'`, rows: "all", live: null };
  return button("stored", () => state.set(patch), {
    class: "rt-flight-stored",
    testid: "flight-stored",
    title: each.trace ? "Open the stored rollout" : "Stored without a trace: its row among all rollouts",
  });
}
