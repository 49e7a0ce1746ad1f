// Where the credit went: overlays over advantages, entropies and logprobs, of the rollout, its turns, its group
// and its step.

import { quantile } from "../../lib/colour.js";
import { ofRollout } from "../what_if/cells.js";
import { tokenOf } from "../what_if/rules.js";
import { each, meanOf } from "./values.js";

const symmetric = values => {
  const size = Math.max(quantile(values.map(Math.abs), 0.99) || 0, 1e-9);
  return [-size, size];
};

export const QUADRANTS = ["pushed down, sure", "pushed down, unsure", "pushed up, sure", "pushed up, unsure"];

export const FATES = ["passes", "masked", "truncated"];

export const CREDIT = [
  {
    key: "entropy_in_turn",
    label: "Entropy against its turn",
    kind: "diverging",
    unit: "nats",
    needs: ["entropies", "turns"],
    derived: true,
    meaning: "Entropy less the mean over the sampled tokens of its turn: where a turn was decided.",
    values: (tokens, { turns }) => {
      const entropies = each(tokens, ["entropies"], v => v);
      const out = new Float32Array(tokens.n).fill(NaN);
      for (const { start, stop } of turns) {
        const mean = meanOf(entropies, start, stop);
        for (let i = start; i < stop; i++) out[i] = entropies[i] - mean;
      }
      return out;
    },
    domain: symmetric,
  },
  {
    key: "logprob_rank",
    label: "Rank of the logprob",
    kind: "sequential",
    needs: ["logprobs"],
    derived: true,
    meaning: "Share of this rollout's sampled tokens that were less surprising: 1 is the least likely token.",
    values: tokens => {
      const logprobs = each(tokens, ["logprobs"], v => v);
      const order = Array.from(logprobs.keys())
        .filter(i => !Number.isNaN(logprobs[i]))
        .sort((a, b) => logprobs[b] - logprobs[a]);
      const out = new Float32Array(tokens.n).fill(NaN);
      for (let at = 0, first = 0; at < order.length; at++) {
        if (logprobs[order[at]] !== logprobs[order[first]]) first = at;
        out[order[at]] = order.length > 1 ? first / (order.length - 1) : 0;
      }
      return out;
    },
    domain: () => [0, 1],
  },
  {
    key: "entropy_change",
    label: "Entropy change, first order",
    kind: "diverging",
    unit: "nats per unit of step",
    needs: ["advantages", "entropies", "logprobs"],
    derived: true,
    meaning:
      "−(A / p_old) p² (1 − p)(ln p + H): where the update widens the distribution (above 0) or narrows it. p is the trainer's probability where prox logprobs are there, else the engine's.",
    values: tokens =>
      each(
        tokens,
        ["advantages", "entropies", "logprobs", tokens.has("prox_logprobs") ? "prox_logprobs" : "logprobs"],
        (advantage, entropy, old, now) => {
          const p = Math.exp(now);
          return -(advantage / Math.exp(old)) * p * p * (1 - p) * (now + entropy);
        },
      ),
    domain: symmetric,
  },
  {
    key: "entropy_covariance",
    label: "Entropy covariance",
    kind: "diverging",
    needs: ["advantages", "logprobs", "step"],
    derived: true,
    meaning: "(A − mean A)(ln p − mean ln p), means over the step's sampled tokens: above 0 the update lowers entropy.",
    values: (tokens, { step }) =>
      each(
        tokens,
        ["advantages", "logprobs"],
        (advantage, logprob) => (advantage - (step.advantage ?? NaN)) * (logprob - (step.logprob ?? NaN)),
      ),
    domain: symmetric,
  },
  {
    key: "credit_quadrant",
    label: "Advantage × entropy",
    kind: "bands",
    needs: ["advantages", "entropies"],
    names: QUADRANTS,
    derived: true,
    meaning: "Sign of the advantage, and entropy above or below this rollout's median.",
    values: tokens => {
      const median = quantile(
        each(tokens, ["entropies"], v => v),
        0.5,
      );
      return each(tokens, ["advantages", "entropies"], (advantage, entropy) =>
        advantage === 0 || Number.isNaN(advantage) || Number.isNaN(entropy)
          ? NaN
          : (advantage > 0 ? 2 : 0) + (entropy > median ? 1 : 0),
      );
    },
  },
  {
    key: "cancellation",
    label: "Cancelled in its group",
    kind: "sequential",
    needs: ["advantages", "group"],
    derived: true,
    meaning:
      "2 min(up, down) / (up + down) of the advantages that the group's kept rollouts put on the token's id: 1 where they cancel.",
    values: (tokens, { group }) => {
      const share = new Map();
      const { ids, up, down } = group;
      for (let i = 0; i < ids.length; i++)
        share.set(ids[i], up[i] + down[i] > 0 ? (2 * Math.min(up[i], down[i])) / (up[i] + down[i]) : NaN);
      const mask = tokens.get("loss_mask");
      return Float32Array.from(tokens.get("ids"), (id, i) => (mask[i] ? (share.get(id) ?? NaN) : NaN));
    },
    domain: () => [0, 1],
  },
  {
    key: "what_if",
    label: "What if",
    kind: "bands",
    needs: ["turns", "rules"],
    names: FATES,
    derived: true,
    meaning: "What the rules of the page What if would do to the token.",
    values: (tokens, { turns }) =>
      ofRollout(tokens, turns, tokens.rules, tokenOf(tokens)).lost.map(lost =>
        Number.isNaN(lost) ? NaN : lost >= 1 ? 1 : lost > 0 ? 2 : 0,
      ),
  },
];
