import assert from "node:assert/strict";
import test from "node:test";
import { ofRollout, tried } from "../../../rollout_traces/inspector/components/what_if/cells.js";
import {
  RULES,
  declared,
  format,
  parse,
  together,
  tokenOf,
} from "../../../rollout_traces/inspector/components/what_if/rules.js";

const ln = Math.log;
const token = values => ({ ratio: NaN, mismatch: NaN, sign: NaN, staleness: NaN, drift: NaN, ...values });
const lost = (key, numbers, values) => RULES.find(rule => rule.key === key).lost(...numbers)(token(values));

function histogram(cells) {
  const of = name => cells.map(cell => cell[name]);
  return {
    edges: [ln(0.8), 0, ln(1.2), ln(2)],
    sources: ["a", "b"],
    n: cells.length,
    ...Object.fromEntries(
      ["new", "prox", "sign", "staleness", "source", "turn", "tokens", "weight"].map(name => [name, of(name)]),
    ),
  };
}
const cell = values => ({
  new: -1,
  prox: 2,
  sign: 1,
  staleness: 0,
  source: 0,
  turn: 0,
  tokens: 10,
  weight: 10,
  ...values,
});

test("PPO's clip acts on one side for each sign", () => {
  assert.equal(lost("clip", [0.2, 0.2], { ratio: ln(1.3), sign: 1 }), 1);
  assert.equal(lost("clip", [0.2, 0.2], { ratio: ln(1.3), sign: -1 }), 0);
  assert.equal(lost("clip", [0.2, 0.2], { ratio: ln(0.7), sign: -1 }), 1);
  assert.equal(lost("clip", [0.2, 0.2], { ratio: ln(0.7), sign: 1 }), 0);
  assert.equal(lost("clip", [0.2, 0.2], { ratio: ln(1.3), sign: 0 }), 0);
});

test("the other rules act where they say", () => {
  assert.equal(lost("dual", [3], { ratio: ln(4), sign: -1 }), 1);
  assert.equal(lost("dual", [3], { ratio: ln(4), sign: 1 }), 0);
  assert.ok(Math.abs(lost("tis", [2], { mismatch: ln(4) }) - 0.5) < 1e-12);
  assert.equal(lost("tis", [2], { mismatch: ln(1.9) }), 0);
  assert.equal(lost("icepop", [0.5, 5], { mismatch: ln(0.4) }), 1);
  assert.equal(lost("icepop", [0.5, 5], { mismatch: ln(4) }), 0);
  assert.equal(lost("dppo", [0.1], { drift: 0.2, sign: 1 }), 1);
  assert.equal(lost("dppo", [0.1], { drift: 0.2, sign: -1 }), 0);
  assert.equal(lost("stale", [2], { staleness: 3 }), 1);
});

test("what is not known is unobserved, not passed", () => {
  for (const rule of RULES)
    assert.ok(
      Number.isNaN(
        lost(
          rule.key,
          rule.params.map(param => param.start),
          {},
        ),
      ),
      rule.key,
    );
  assert.ok(Number.isNaN(together([NaN, NaN])));
  assert.equal(together([NaN, 1]), 1);
  assert.equal(together([]), 0);
});

test("a step at the edges of its bins is answered exactly", () => {
  const cells = histogram([
    cell({ new: 3, prox: -1 }),
    cell({ new: 3, prox: -1, sign: -1, source: 1 }),
    cell({ new: 2, prox: -1, weight: 30, turn: 1 }),
  ]);
  const found = tried(cells, new Map([["clip", [0.2, 0.2]]]));
  const share = [1 / 3, 1 / 3, 1 / 3];
  found.all.masked.forEach((value, i) => assert.ok(Math.abs(value - share[i]) < 1e-6));
  assert.ok(Math.abs(found.all.update[0] - 0.2) < 1e-6);
  assert.deepEqual(
    found.sources.map(each => [each.name, each.masked[0]]),
    [
      ["a", 0.5],
      ["b", 0],
    ],
  );
  assert.deepEqual(
    found.turns.map(each => each.name),
    ["turn 1", "turn 2"],
  );
});

test("a threshold inside a bin gives an estimate and its bounds", () => {
  const found = tried(histogram([cell({ prox: 3 })]), new Map([["icepop", [0.5, 1.5]]]));
  const [about, least, most] = found.all.masked;
  assert.deepEqual([least, most], [0, 1]);
  assert.ok(about > 0.2 && about < 0.9);
});

test("a clip of a ratio that is the difference of two binned ones has bounds, also by rule", () => {
  const found = tried(histogram([cell({ new: 3, prox: 3, weight: 2 })]), new Map([["clip", [0.2, 0.2]]]));
  assert.deepEqual(found.all.masked.slice(1), [0, 1]);
  assert.deepEqual(found.rules[0].update.slice(1), [0, 1]);
});

test("rules whose quantities are missing say for how much", () => {
  const found = tried(
    histogram([cell({ staleness: -1 }), cell({ tokens: 30, staleness: 1 })]),
    new Map([
      ["dppo", [0.1]],
      ["stale", [0]],
    ]),
  );
  assert.deepEqual(
    found.rules.map(each => [each.rule.key, each.observed]),
    [
      ["dppo", 0],
      ["stale", 0.75],
    ],
  );
  assert.equal(found.all.masked[0], 0.75);
  assert.ok(
    Number.isNaN(tried(histogram([cell()]), new Map([["dppo", [0.1]]])).all.masked[0]),
    "nothing could be tried",
  );
  const merged = tried(histogram([cell({ turn: -1, source: -1 })]), new Map([["stale", [0]]]));
  assert.deepEqual([merged.sources, merged.turns], [null, null]);
});

test("rollouts whose advantages are 0 have no update to take", () => {
  const found = tried(histogram([cell({ weight: 0, staleness: 1 })]), new Map([["stale", [0]]]));
  assert.deepEqual([found.all.masked[0], found.all.update[0]], [1, null]);
});

test("an old token beyond what the histogram tells apart is bounded", () => {
  const found = tried(histogram([cell({ staleness: 3 })]), new Map([["stale", [5]]]));
  assert.deepEqual(found.all.masked.slice(1), [0, 1]);
});

test("a rollout is answered token for token", () => {
  const arrays = {
    loss_mask: [0, 1, 1, 1],
    advantages: [1, 1, 1, -2].map(v => v),
    logprobs: [-1, -1, -1, -1],
    prox_logprobs: [-1, -1, -1, -1],
    new_logprobs: [-1, -1, -0.5, -0.5],
    versions: [-1, 3, 3, 1],
  };
  const tokens = { n: 4, trainVersion: 3, has: name => name in arrays, get: name => arrays[name] };
  const turns = [
    { start: 0, stop: 2, role: "user" },
    { start: 2, stop: 4, role: "assistant" },
  ];
  const found = ofRollout(tokens, turns, new Map([["clip", [0.2, 0.2]]]), tokenOf(tokens));
  assert.deepEqual([...found.lost].slice(1), [0, 1, 0]);
  assert.ok(Number.isNaN(found.lost[0]));
  assert.equal(found.all.masked[0], 1 / 3);
  assert.equal(found.all.update[0], 0.25);
  assert.deepEqual(
    found.turns.map(each => each.name),
    ["turn 0, user", "turn 1, assistant"],
  );
  const stale = ofRollout(tokens, turns, new Map([["stale", [1]]]), tokenOf(tokens));
  assert.deepEqual([...stale.lost].slice(1), [0, 0, 1]);
});

test("rules come back from the address, and what is odd in it is left out", () => {
  const chosen = new Map([
    ["clip", [0.2, 0.28]],
    ["tis", [2]],
  ]);
  assert.equal(format(chosen), "clip:0.2,0.28;tis:2");
  assert.deepEqual([...parse(format(chosen))], [...chosen]);
  assert.equal(parse("none").size, 0);
  assert.equal(parse("clip:9,9;zzz:1;tis:;icepop:0.5").size, 0);
});

test("what the run declares is where the rules begin", () => {
  const none = { clip_low: null, clip_high: null, importance_cap: null, importance_band: null };
  assert.deepEqual([...declared(none)], [["clip", [0.2, 0.2]]]);
  assert.deepEqual(
    [...declared({ ...none, importance_cap: 2, importance_band: { min: 0.5, max: 5 } }).keys()],
    ["tis", "icepop"],
  );
});
