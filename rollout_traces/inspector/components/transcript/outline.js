// The turns at a glance: a strip with a part a turn, as wide as its text, marked where something is odd.

import { h, replace } from "../../lib/dom.js";
import { plural } from "../../lib/format.js";
import { worst } from "../../lib/flags.js";
import { inert } from "../../lib/text.js";

const MOST = 400;

// What is odd about each turn: {severity, calls, failed}.
export function marksOf(rollout) {
  return rollout.turns.map((turn, index) => {
    const flags = rollout.flags.filter(flag => flag.turn === index);
    return {
      severity: worst(flags),
      calls: turn.tool_calls.length,
      failed:
        flags.some(flag => flag.severity === "error" || flag.name.startsWith("tool_")) ||
        turn.tool_calls.some(call => !call.parsed),
    };
  });
}

// The next turn of a kind in a direction, around the end; -1 where there is none. kind(turn, mark) says which.
export function nextTurn(turns, marks, from, by, kind) {
  for (let count = 1; count <= turns.length; count++) {
    const at = (((from + by * count) % turns.length) + turns.length) % turns.length;
    if (kind(turns[at], marks[at])) return at;
  }
  return -1;
}

export class Outline {
  // goTo(index): shows a turn.
  constructor(rollout, goTo) {
    this.marks = marksOf(rollout);
    const length = turn => Math.sqrt(1 + (turn.n_tokens ?? turn.content.length / 4));
    this.parts = rollout.turns.slice(0, MOST).map((turn, index) => {
      const mark = this.marks[index];
      const said = [
        turn.role,
        turn.name,
        turn.n_tokens === null ? null : plural(turn.n_tokens, "token"),
        mark.calls ? plural(mark.calls, "tool call") : null,
        ...rollout.flags.filter(flag => flag.turn === index).map(flag => flag.name.replaceAll("_", " ")),
      ].filter(Boolean);
      const words = `turn ${index}: ${inert(said.join(", "))}`;
      return h(
        "button#outline-turn",
        {
          class: `rt-role-${turn.role}${mark.severity ? ` rt-marked-${mark.severity}` : ""}`,
          title: words,
          "aria-label": words,
          dataset: { severity: mark.severity || "" },
          style: { "--share": String(length(turn)) },
          onclick: () => goTo(index),
        },
        mark.calls ? "\u2692" : "",
      );
    });
    this.root = h("nav.rt-outline#outline", { "aria-label": "Turns" });
    replace(this.root, this.parts);
  }

  mark(index) {
    this.root.querySelector("[aria-current]")?.removeAttribute("aria-current");
    this.parts[index]?.setAttribute("aria-current", "true");
  }
}
