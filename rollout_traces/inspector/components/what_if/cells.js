// A step's loss tokens in cells: what rules take of them. A cell holds tokens whose log ratios lie within bins; where a
// threshold cuts a bin, the share has bounds, and an estimate from a grid of points in it. A ratio of new to prox is the
// difference of two binned values, which go together in ways that no grid knows: its bounds are wide.

import { applied, together } from "./rules.js";

const WITHIN = [1e-9, 0.25, 0.5, 0.75, 1 - 1e-9];
// Nats beyond the last edge, for the open bins.
const BEYOND = [1e-9, 0.3, 0.7, 1.5, 5];
const MOST_STALE = 3;

// Points of a bin; [NaN] where the value is unknown.
function points(edges, bin) {
  if (bin < 0) return [NaN];
  if (bin === 0) return BEYOND.map(far => edges[0] - far);
  if (bin >= edges.length) return BEYOND.map(far => edges.at(-1) + far);
  return WITHIN.map(share => edges[bin - 1] + share * (edges[bin] - edges[bin - 1]));
}

// What one cell loses: masked, cut and of the update, as [about, at least, at most] of each; and of each rule how many
// points it sees there, and what it takes of the update.
function ofCell(cells, at, rules) {
  const token = {
    ratio: NaN,
    mismatch: NaN,
    sign: cells.sign[at] === 2 ? NaN : cells.sign[at],
    staleness: NaN,
    drift: NaN,
  };
  const ages =
    cells.staleness[at] < 0 ? [NaN] : cells.staleness[at] < MOST_STALE ? [cells.staleness[at]] : [3, 4, 6, 1e9];
  const sums = [0, 0, 0];
  const least = [1, 1, 1];
  const most = [0, 0, 0];
  const losses = new Array(rules.length);
  const seen = new Array(rules.length).fill(0);
  const ofRule = rules.map(() => [0, 1, 0]);
  let known = false;
  let count = 0;
  for (const fresh of points(cells.edges, cells.new[at]))
    for (const prox of points(cells.edges, cells.prox[at]))
      for (const age of ages) {
        token.ratio = Number.isNaN(prox) ? fresh : fresh - prox;
        token.mismatch = prox;
        token.staleness = age;
        for (let r = 0; r < rules.length; r++) {
          losses[r] = rules[r].lost(token);
          if (!Number.isNaN(losses[r])) {
            seen[r] += 1;
            const [sum, low, high] = ofRule[r];
            ofRule[r] = [sum + losses[r], Math.min(low, losses[r]), Math.max(high, losses[r])];
          }
        }
        const lost = together(losses);
        known ||= !Number.isNaN(lost);
        const outcome = [lost >= 1 ? 1 : 0, lost > 0 && lost < 1 ? 1 : 0, Number.isNaN(lost) ? 0 : lost];
        for (let i = 0; i < 3; i++) {
          sums[i] += outcome[i];
          least[i] = Math.min(least[i], outcome[i]);
          most[i] = Math.max(most[i], outcome[i]);
        }
        count += 1;
      }
  return { about: sums.map(sum => sum / count), least, most, known, seen, ofRule };
}

function empty() {
  return { tokens: 0, known: 0, weight: 0, masked: [0, 0, 0], cut: [0, 0, 0], update: [0, 0, 0] };
}

function add(total, tokens, weight, { about, least, most, known }) {
  total.tokens += tokens;
  if (known) total.known += tokens;
  total.weight += weight;
  for (const [name, i, of] of [
    ["masked", 0, tokens],
    ["cut", 1, tokens],
    ["update", 2, weight],
  ])
    for (const [k, outcome] of [about, least, most].entries()) total[name][k] += outcome[i] * of;
}

// Shares of a total: [about, at least, at most]; NaN where no rule could be tried, null of the update where there is none
// to take.
export function shares(total) {
  const of = (values, whole) => values.map(value => (!total.known ? NaN : whole > 0 ? value / whole : null));
  return {
    tokens: total.tokens,
    masked: of(total.masked, total.tokens),
    cut: of(total.cut, total.tokens),
    update: of(total.update, total.weight),
  };
}

// What the chosen rules take of a step: {all, rules, sources, turns}; sources and turns are null where the histogram had
// no room for them. A rule's `observed` is the share of tokens that it could be tried on.
export function tried(cells, chosen) {
  const rules = applied(chosen);
  const all = empty();
  const bySource = new Map();
  const byTurn = new Map();
  const ofRules = rules.map(({ rule }) => ({ rule, observed: 0, taken: [0, 0, 0], weight: 0 }));
  for (let at = 0; at < cells.n; at++) {
    const outcome = ofCell(cells, at, rules);
    const [tokens, weight] = [cells.tokens[at], cells.weight[at]];
    add(all, tokens, weight, outcome);
    for (const [map, key] of [
      [bySource, cells.source[at]],
      [byTurn, cells.turn[at]],
    ]) {
      if (!map.has(key)) map.set(key, empty());
      add(map.get(key), tokens, weight, outcome);
    }
    for (const [r, entry] of ofRules.entries())
      if (outcome.seen[r]) {
        entry.observed += tokens;
        const [sum, low, high] = outcome.ofRule[r];
        for (const [k, part] of [sum / outcome.seen[r], low, high].entries()) entry.taken[k] += part * weight;
        entry.weight += weight;
      }
  }
  const listed = (map, name) =>
    map.size === 1 && map.has(-1)
      ? null
      : [...map].sort((a, b) => a[0] - b[0]).map(([key, total]) => ({ name: name(key), ...shares(total) }));
  return {
    all: shares(all),
    rules: ofRules.map(({ rule, observed, taken, weight }) => ({
      rule,
      observed: all.tokens ? observed / all.tokens : 0,
      update: taken.map(part => (weight ? part / weight : NaN)),
    })),
    sources: listed(bySource, key => (key < 0 ? "unknown" : (cells.sources[key] ?? "other"))),
    turns: listed(byTurn, key => (key < 0 ? "unknown" : key >= MOST_STALE ? "turn 4 and later" : `turn ${key + 1}`)),
  };
}

// The same of one rollout, exactly: {all, turns, lost: Float32Array, NaN outside the loss or where nothing is known}.
export function ofRollout(tokens, turns, chosen, tokenAt) {
  const rules = applied(chosen);
  const mask = tokens.get("loss_mask");
  const weights = tokens.has("loss_weights") ? tokens.get("loss_weights") : null;
  const advantages = tokens.has("advantages") ? tokens.get("advantages") : null;
  const lost = new Float32Array(tokens.n).fill(NaN);
  const all = empty();
  const perTurn = [];
  for (const [index, { start, stop, role }] of turns.entries()) {
    const total = empty();
    for (let i = start; i < stop; i++) {
      if (!mask[i]) continue;
      const token = tokenAt(i);
      const value = together(rules.map(each => each.lost(token)));
      lost[i] = value;
      const size = Math.abs(advantages ? advantages[i] : NaN) * (weights ? weights[i] : 1);
      const weight = Number.isFinite(size) ? size : 0;
      const outcome = [value >= 1 ? 1 : 0, value > 0 && value < 1 ? 1 : 0, Number.isNaN(value) ? 0 : value];
      for (const sum of [total, all])
        add(sum, 1, weight, { about: outcome, least: outcome, most: outcome, known: !Number.isNaN(value) });
    }
    if (total.tokens) perTurn.push({ name: `turn ${index}, ${role}`, index, ...shares(total) });
  }
  return { all: shares(all), turns: perTurn, lost };
}
