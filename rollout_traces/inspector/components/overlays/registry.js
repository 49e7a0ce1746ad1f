// The token overlays. One entry an overlay, and nothing else anywhere: the menu, the legend, the card of a token
// and the table of the docs are made from it.
//
// needs: what has to be there, tracks of the rollout by name, or of what is around it: "turns" (the rollout's),
// "group" (what its group's kept rollouts do to each token id), "step" (means over the step's rollouts),
// "rules" (those of the page What if) and "train_version". What the rollout lacks is not offered; group and step are asked for when it is chosen.
// kind: "mask" (on or off), "bands" (a few whole numbers, named by `names`), "sequential" (from nothing to much)
// or "diverging" (below and above a middle). values(tokens, around) gives a Float32Array, NaN = no value there;
// `around` holds {turns, group, step}. derived: the card of a token shows it beside the tracks.

import { quantile } from "../../lib/colour.js";
import { CREDIT } from "./credit.js";
import { each, k3 } from "./values.js";

const track = name => tokens => each(tokens, [name], v => v);
const upTo = share => values => [0, Math.max(quantile(values, share) || 0, 1e-6)];
const around = middle => values => {
  const distances = values.map(v => Math.abs(v - middle));
  const size = Math.max(quantile(distances, 0.99) || 0, 1e-6);
  return [middle - size, middle + size];
};
const policy = tokens => (tokens.has("prox_logprobs") ? "prox_logprobs" : "logprobs");

export const OVERLAYS = [
  {
    key: "loss_mask",
    label: "Loss mask",
    kind: "mask",
    needs: ["loss_mask"],
    meaning: "Tokens that contribute to the loss.",
    on: "in the loss",
    off: "not in the loss",
    values: tokens => Float32Array.from(tokens.get("loss_mask")),
  },
  {
    key: "response_mask",
    label: "Response mask",
    kind: "mask",
    needs: ["response_mask"],
    meaning: "Tokens that the policy sampled.",
    on: "sampled",
    off: "not sampled",
    values: tokens => Float32Array.from(tokens.get("response_mask")),
  },
  {
    key: "version",
    label: "Policy version",
    kind: "bands",
    needs: ["versions"],
    meaning: "The weights that sampled the token.",
    values: tokens => each(tokens, ["versions"], v => (v < 0 ? NaN : v), { sampledOnly: false }),
  },
  {
    key: "staleness",
    label: "Staleness",
    kind: "bands",
    needs: ["versions", "train_version"],
    derived: true,
    meaning: "The version being trained minus the version that sampled the token.",
    values: tokens => each(tokens, ["versions"], v => (v < 0 ? NaN : tokens.trainVersion - v), { sampledOnly: false }),
  },
  {
    key: "logprob",
    label: "Rollout logprob",
    kind: "sequential",
    unit: "nats",
    low: true,
    needs: ["logprobs"],
    meaning: "What the engine gave the token; the less likely, the stronger.",
    values: track("logprobs"),
    domain: values => [Math.min(quantile(values, 0.01) || 0, -1e-6), 0],
  },
  {
    key: "mismatch",
    label: "Prox − rollout logprob",
    kind: "diverging",
    unit: "nats",
    needs: ["prox_logprobs", "logprobs"],
    derived: true,
    meaning: "The trainer's logprob less the engine's, same weights: 0 where they agree.",
    values: tokens => each(tokens, ["prox_logprobs", "logprobs"], (p, l) => p - l),
    domain: around(0),
  },
  {
    key: "ppo_ratio",
    label: "PPO ratio",
    kind: "diverging",
    needs: ["new_logprobs", "prox_logprobs"],
    middle: 1,
    derived: true,
    meaning: "e^(new − prox): how far the update moved the token.",
    values: tokens => each(tokens, ["new_logprobs", "prox_logprobs"], (a, b) => Math.exp(a - b)),
    domain: around(1),
  },
  {
    key: "advantage",
    label: "Advantage",
    kind: "diverging",
    needs: ["advantages"],
    meaning: "Pushed up where positive, down where negative.",
    values: track("advantages"),
    domain: around(0),
  },
  {
    key: "update_share",
    label: "Share of the update",
    kind: "sequential",
    needs: ["advantages", "logprobs"],
    derived: true,
    meaning: "|A| · weight · (1 − p), as a share of this rollout's sum: where its gradient comes from.",
    values: tokens => {
      const weights = tokens.get("loss_weights");
      const mask = tokens.get("loss_mask");
      const out = each(tokens, ["advantages", "logprobs"], (a, l) => Math.abs(a) * (1 - Math.exp(Math.min(l, 0))), {
        sampledOnly: false,
      });
      let sum = 0;
      for (let i = 0; i < out.length; i++) {
        out[i] = mask[i] ? out[i] * (weights ? weights[i] : 1) : NaN;
        if (Number.isFinite(out[i])) sum += out[i];
      }
      return sum > 0 ? out.map(v => v / sum) : out;
    },
    domain: upTo(0.995),
  },
  {
    key: "ref_kl",
    label: "Reference KL",
    kind: "sequential",
    unit: "nats",
    needs: ["ref_logprobs", "logprobs"],
    derived: true,
    meaning: "e^d − d − 1 with d = reference minus policy logprob: the k3 estimate, never negative.",
    values: tokens => each(tokens, ["ref_logprobs", policy(tokens)], (r, p) => k3(r - p)),
    domain: upTo(0.99),
  },
  {
    key: "entropy",
    label: "Entropy",
    kind: "sequential",
    unit: "nats",
    needs: ["entropies"],
    meaning: "How undecided the policy was at this token.",
    values: track("entropies"),
    domain: upTo(0.99),
  },
  {
    key: "value",
    label: "Value",
    kind: "diverging",
    needs: ["values"],
    meaning: "The critic's estimate; the middle is this rollout's median.",
    values: track("values"),
    domain: values => around(quantile(values, 0.5) || 0)(values),
  },
  {
    key: "token_reward",
    label: "Token reward",
    kind: "diverging",
    needs: ["token_rewards"],
    meaning: "Reward given at the token.",
    values: track("token_rewards"),
    domain: around(0),
  },
  {
    key: "loss_weight",
    label: "Loss weight",
    kind: "sequential",
    needs: ["loss_weights"],
    meaning: "The weight of the token in the loss.",
    values: track("loss_weights"),
    domain: upTo(0.99),
  },
  ...CREDIT,
];

export const AROUND = ["group", "step"];
const HAS = {
  turns: () => true,
  group: tokens => tokens.inGroup !== false,
  step: () => true,
  rules: tokens => Boolean(tokens.rules),
  train_version: tokens => tokens.trainVersion !== null && tokens.trainVersion !== undefined,
};

export function available(tokens) {
  return OVERLAYS.filter(overlay => overlay.needs.every(name => (HAS[name] ? HAS[name](tokens) : tokens.has(name))));
}

// What an overlay needs of what is around the rollout and is not there yet.
export function missing(overlay, around) {
  return overlay.needs.filter(name => AROUND.includes(name) && !around[name]);
}

export const LEVELS = 12;

// What drawing needs: the values, the class of each token, and what the legend says. Rollouts shown beside
// it share the range and the bands, so that a colour means one thing.
export function paint(overlay, tokens, beside = [], around = {}) {
  const values = overlay.values(tokens, around);
  const shared = overlay.needs.some(name => name in HAS && name !== "train_version") ? [] : beside;
  const all = shared
    .filter(other => available(other).includes(overlay))
    .reduce((sum, other) => joined(sum, overlay.values(other)), values);
  if (overlay.kind === "mask") {
    return { overlay, values, classOf: i => (values[i] ? "m1" : "m0"), domain: [0, 1] };
  }
  if (overlay.kind === "bands") {
    const known = [...new Set(all.filter(Number.isFinite))].sort((a, b) => a - b);
    const bands = new Map(known.map((value, at) => [value, overlay.names ? value : at % 8]));
    const classOf = i => (Number.isNaN(values[i]) ? "m0" : `b${bands.get(values[i])}`);
    return { overlay, values, bands, classOf, domain: known.length ? [known[0], known.at(-1)] : [0, 0] };
  }
  const [low, high] = overlay.domain(all);
  const middle = (low + high) / 2;
  const level =
    overlay.kind === "diverging"
      ? v => Math.round(Math.max(-1, Math.min(1, (v - middle) / (high - middle))) * LEVELS)
      : v => Math.round(Math.max(0, Math.min(1, overlay.low ? v / low : v / high)) * LEVELS);
  const classOf = i => {
    const v = values[i];
    if (Number.isNaN(v)) return "m0";
    if (!Number.isFinite(v)) return "nf";
    const l = level(v);
    return overlay.kind === "diverging" ? (l < 0 ? `n${-l}` : `p${l}`) : `s${l}`;
  };
  return { overlay, values, classOf, domain: [low, high] };
}

function joined(a, b) {
  const out = new Float32Array(a.length + b.length);
  out.set(a);
  out.set(b, a.length);
  return out;
}

// Positions worth jumping to: edges of masks and bands in order, else the most extreme values, greatest first.
export function extremes(painted, most = 40) {
  const { overlay, values } = painted;
  const n = values.length;
  const found = [];
  if (overlay.kind === "mask" || overlay.kind === "bands") {
    for (let i = 1; i < n; i++) if (!Object.is(values[i], values[i - 1])) found.push(i);
    return found;
  }
  const middle = overlay.kind === "diverging" ? (painted.domain[0] + painted.domain[1]) / 2 : 0;
  const ranked = [];
  for (let i = 0; i < n; i++)
    if (!Number.isNaN(values[i]) && values[i] !== middle)
      ranked.push([Number.isFinite(values[i]) ? Math.abs(values[i] - middle) : Infinity, i]);
  ranked.sort((a, b) => (b[0] === a[0] ? a[1] - b[1] : b[0] - a[0]));
  return ranked.slice(0, Math.min(most, Math.max(Math.ceil(ranked.length / 20), 5))).map(pair => pair[1]);
}
