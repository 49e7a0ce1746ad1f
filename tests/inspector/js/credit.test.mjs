import assert from "node:assert/strict";
import test from "node:test";
import { CREDIT } from "../../../rollout_traces/inspector/components/overlays/credit.js";
import {
  AROUND,
  OVERLAYS,
  available,
  missing,
  paint,
} from "../../../rollout_traces/inspector/components/overlays/registry.js";
import { turnFigures, turnTimes } from "../../../rollout_traces/inspector/components/transcript/turn_table.js";

const pack = (values, Kind, kind) => ({ kind, data: Buffer.from(Kind.from(values).buffer).toString("base64") });

function tokens(tracks) {
  const arrays = {
    loss_mask: Uint8Array.from([0, 1, 1, 1]),
    response_mask: Uint8Array.from([0, 1, 1, 1]),
    ids: Int32Array.from([1, 2, 3, 2]),
    ...Object.fromEntries(Object.entries(tracks).map(([name, values]) => [name, Float32Array.from(values)])),
  };
  return { n: 4, has: name => name in arrays, get: name => arrays[name] };
}

const overlay = key => CREDIT.find(each => each.key === key);
const near = (found, expected) =>
  expected.forEach((value, i) =>
    Number.isNaN(value)
      ? assert.ok(Number.isNaN(found[i]), `${i}: ${found[i]}`)
      : assert.ok(Math.abs(found[i] - value) < 1e-5, `${i}: ${found[i]} is not ${value}`),
  );

test("entropy is held against its own turn", () => {
  const turns = [
    { start: 0, stop: 2 },
    { start: 2, stop: 4 },
  ];
  near(overlay("entropy_in_turn").values(tokens({ entropies: [9, 2, 1, 3] }), { turns }), [NaN, 0, -1, 1]);
});

test("the least likely token ranks first, equal ones alike", () => {
  near(overlay("logprob_rank").values(tokens({ logprobs: [0, -3, -1, -1] })), [NaN, 1, 0, 0]);
});

// The exact change: one policy-gradient step on the logits of a softmax, H before and after.
test("the entropy change agrees with the exact one in sign, mostly, and in size", () => {
  let seed = 7;
  const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
  const softmax = logits => {
    const exps = logits.map(Math.exp);
    const sum = exps.reduce((a, b) => a + b);
    return exps.map(e => e / sum);
  };
  const entropy = p => -p.reduce((sum, v) => sum + v * Math.log(v), 0);
  const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  const pairs = [];
  for (let draw = 0; draw < 3000; draw++) {
    const logits = Array.from({ length: 12 }, () => 2 * normal());
    const p = softmax(logits);
    let at = 0;
    for (let left = random(); at < 11 && (left -= p[at]) > 0;) at++;
    const advantage = 2 * random() - 1;
    const moved = softmax(logits.map((v, i) => v + 1e-4 * advantage * ((i === at ? 1 : 0) - p[i])));
    const track = tokens({
      advantages: [0, advantage, 0, 0],
      entropies: [0, entropy(p), 0, 0],
      logprobs: [0, Math.log(p[at]), -1, -1],
    });
    pairs.push([overlay("entropy_change").values(track)[1], (entropy(moved) - entropy(p)) / 1e-4]);
  }
  const right = pairs.filter(([told, exact]) => Math.sign(told) === Math.sign(exact)).length / pairs.length;
  const mean = i => pairs.reduce((sum, pair) => sum + pair[i], 0) / pairs.length;
  const [x, y] = [mean(0), mean(1)];
  const cov = (i, j) => pairs.reduce((sum, pair) => sum + (pair[i] - [x, y][i]) * (pair[j] - [x, y][j]), 0);
  const correlation = cov(0, 1) / Math.sqrt(cov(0, 0) * cov(1, 1));
  assert.ok(right >= 0.85 && correlation >= 0.75, `${right} of the signs, correlation ${correlation}`);
});

test("without entropies there is no entropy change, not zero", () => {
  const track = tokens({ advantages: [0, 1, 1, 1], logprobs: [0, -1, -1, -1] });
  assert.ok(
    !available(track).some(each => ["entropy_change", "entropy_in_turn", "credit_quadrant"].includes(each.key)),
  );
});

test("covariance takes the step's means", () => {
  const track = tokens({ advantages: [0, 1, 2, 0], logprobs: [0, -1, -2, -3] });
  near(overlay("entropy_covariance").values(track, { step: { advantage: 1, logprob: -2 } }), [NaN, 0, 0, 1]);
});

test("quadrants name direction and certainty", () => {
  const track = tokens({ advantages: [0, 1, -1, 0], entropies: [0, 3, 1, 2] });
  near(overlay("credit_quadrant").values(track), [NaN, 3, 0, NaN]);
});

test("what a group cancels is told by token id", () => {
  const group = { ids: [2, 3], up: [1, 4], down: [1, 0] };
  near(overlay("cancellation").values(tokens({ advantages: [0, 1, 1, 1] }), { group }), [NaN, 1, 0, 1]);
});

test("what is around is asked for by those that declare it alone", () => {
  const around = { turns: [], group: null, step: null };
  const asking = OVERLAYS.filter(each => missing(each, around).length).map(each => each.key);
  assert.deepEqual(asking, ["entropy_covariance", "cancellation"]);
  for (const each of OVERLAYS) for (const name of missing(each, around)) assert.ok(AROUND.includes(name));
});

test("every entry can be painted, with a name, a meaning and a known kind", () => {
  const names = [
    "logprobs",
    "prox_logprobs",
    "new_logprobs",
    "ref_logprobs",
    "advantages",
    "entropies",
    "values",
    "token_rewards",
    "loss_weights",
    "versions",
  ];
  const track = Object.assign(
    tokens(Object.fromEntries(names.map((name, i) => [name, [0, -1, -0.5 - i / 10, -0.2]]))),
    { trainVersion: 3, rules: new Map([["stale", [0]]]) },
  );
  const around = {
    turns: [{ start: 0, stop: 4 }],
    step: { advantage: 0, logprob: -1 },
    group: { ids: [2], up: [1], down: [1] },
  };
  assert.deepEqual(
    available(track).map(each => each.key),
    OVERLAYS.map(each => each.key),
  );
  for (const each of OVERLAYS) {
    assert.ok(each.label && each.meaning && ["mask", "bands", "sequential", "diverging"].includes(each.kind), each.key);
    const painted = paint(each, track, [], around);
    for (let i = 0; i < 4; i++) assert.match(painted.classOf(i), /^(m[01]|b\d|nf|[spn]\d+)$/);
  }
});

test("figures of a turn come from its own tokens", () => {
  const turns = [
    { start: 0, stop: 2 },
    { start: 2, stop: 4 },
  ];
  const figures = Object.fromEntries(
    turnFigures(turns, tokens({ advantages: [5, 1, 2, 4], token_rewards: [0, 0.5, 0, 1] })).map(each => [
      each.name,
      each.values,
    ]),
  );
  assert.deepEqual(figures, { advantage: [1, 3], reward: [0.5, 1] });
});

test("a turn's time is what the trainer timed, and no column where it did not", () => {
  const turns = [
    { role: "user", n_sampled: 0 },
    { role: "assistant", n_sampled: 5 },
    { role: "tool", n_sampled: 0 },
    { role: "assistant", n_sampled: 3 },
  ];
  assert.deepEqual(turnTimes(turns, { "turn/0": 1.5, "tool/0": 0.2, "turn/1": "x", generation: 3 })[0].values, [
    NaN,
    1.5,
    0.2,
    NaN,
  ]);
  assert.deepEqual(turnTimes(turns, { generation: 3 }), []);
});
