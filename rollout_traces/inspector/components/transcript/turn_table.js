// Each turn in figures, from the token track; a figure whose input was not logged has no column.

import { h, numberCell, table } from "../../lib/dom.js";
import { number, seconds, signed } from "../../lib/format.js";
import { inert } from "../../lib/text.js";
import { k3, meanOf } from "../overlays/values.js";

const SAMPLED = "response_mask";
const total = values => values.reduce((sum, v) => sum + (Number.isFinite(v) ? v : 0), 0);
const mismatch = (prox, logprobs) => meanOf(prox.map((value, i) => k3(value - logprobs[i])));

// name, meaning, the mask of the tokens that count, the tracks of which the value is made, and how; how it is shown
const FIGURES = [
  ["advantage", "mean over the turn's loss tokens", "loss_mask", ["advantages"], meanOf, signed],
  ["reward", "sum of the rewards at the turn's tokens", null, ["token_rewards"], total],
  ["logprob", "mean over the turn's sampled tokens, nats, of the engine", SAMPLED, ["logprobs"], meanOf],
  ["entropy", "mean over the turn's sampled tokens, nats", SAMPLED, ["entropies"], meanOf],
  [
    "mismatch k3",
    "mean of e^d − d − 1, d = prox minus rollout logprob, over the turn's sampled tokens",
    SAMPLED,
    ["prox_logprobs", "logprobs"],
    mismatch,
  ],
  ["value", "mean of the critic's estimates", SAMPLED, ["values"], meanOf],
];

// [{name, meaning, values: one a turn, NaN where unknown}]
export function turnFigures(turns, tokens) {
  return FIGURES.filter(([, , , needs]) => needs.every(name => tokens.has(name))).map(
    ([name, meaning, mask, needs, value, show = number]) => ({
      name,
      meaning,
      show,
      values: turns.map(({ start, stop }) => {
        const picked = [];
        for (let i = start; i < stop; i++) if (!mask || tokens.get(mask)[i]) picked.push(i);
        return picked.length ? value(...needs.map(track => Float64Array.from(picked, i => tokens.get(track)[i]))) : NaN;
      }),
    }),
  );
}

// Seconds of each turn, as the trainer's timings tell: `turn/0`, `turn/1`, ... of the turns that were sampled, `tool/0`, ...
// of the tools' turns. Nothing where they tell of none.
export function turnTimes(turns, timings) {
  const counts = { turn: 0, tool: 0 };
  const values = turns.map(turn => {
    const kind = turn.role === "tool" ? "tool" : turn.n_sampled ? "turn" : null;
    const value = kind && timings?.[`${kind}/${counts[kind]++}`];
    return typeof value === "number" ? value : NaN;
  });
  return values.some(value => !Number.isNaN(value))
    ? [{ name: "time", meaning: "seconds, as the trainer timed the turn", values, show: seconds }]
    : [];
}

export function turnTable(rollout, tokens, goTo) {
  const figures = [...turnFigures(rollout.turns, tokens), ...turnTimes(rollout.turns, rollout.timings)];
  return h(
    "div.rt-turn-table#turn-table",
    { tabindex: "0", "aria-label": "Each turn in figures" },
    table(
      null,
      [
        "turn",
        h("th.rt-num", "tokens"),
        h("th.rt-num", "sampled"),
        h("th.rt-num", { title: "tokens that contribute to the loss" }, "in the loss"),
        figures.map(figure => h("th.rt-num", { title: figure.meaning }, figure.name)),
        "calls",
      ],
      rollout.turns,
      (turn, index) =>
        h(
          "tr",
          h(
            "td",
            h(
              "button",
              { class: `rt-turn-link rt-role-${turn.role}`, onclick: () => goTo(index) },
              `${index} ${turn.role}${turn.name ? ` ${inert(turn.name)}` : ""}`,
            ),
          ),
          numberCell(turn.n_tokens),
          numberCell(turn.n_sampled),
          numberCell(countIn(tokens.get("loss_mask"), turn)),
          figures.map(figure => numberCell(figure.values[index], figure.show)),
          h("td.rt-ellipsis", turn.tool_calls.map(call => inert(call.name)).join(", ")),
        ),
    ),
  );
}

function countIn(mask, { start, stop }) {
  let count = 0;
  for (let i = start; i < stop; i++) count += mask[i];
  return count;
}
