import assert from "node:assert/strict";
import test from "node:test";
import {
  OVERLAYS,
  available,
  extremes,
  paint,
} from "../../../rollout_traces/inspector/components/overlays/registry.js";
import { lone, path, smooth, ticks } from "../../../rollout_traces/inspector/components/charts/scale.js";
import { Tokens } from "../../../rollout_traces/inspector/lib/tracks.js";
import { quantile } from "../../../rollout_traces/inspector/lib/colour.js";

function pack(values, Kind, kind) {
  return { kind, data: Buffer.from(Kind.from(values).buffer).toString("base64") };
}

function tokens(extra = {}, trainVersion = 9) {
  const arrays = {
    ids: pack([1, 2, 3, 4], Int32Array, "i4"),
    starts: pack([0, 1, 2, 2], Uint8Array, "u1"),
    stops: pack([1, 2, 2, 4], Uint8Array, "u1"),
    loss_mask: pack([0, 1, 1, 1], Uint8Array, "u1"),
    response_mask: pack([0, 1, 1, 1], Uint8Array, "u1"),
    special: pack([1, 0, 0, 0], Uint8Array, "u1"),
    ...Object.fromEntries(
      Object.entries(extra).map(([name, values]) => [
        name,
        name === "versions" ? pack(values, Float64Array, "f8") : pack(values, Float32Array, "f4"),
      ]),
    ),
  };
  return new Tokens({ n: 4, arrays, train_version: trainVersion }, "abcd");
}

const overlay = key => OVERLAYS.find(each => each.key === key);
const near = (found, expected) =>
  expected.forEach((value, i) =>
    Number.isNaN(value)
      ? assert.ok(Number.isNaN(found[i]))
      : assert.ok(Math.abs(found[i] - value) < 1e-5, `${found[i]} is not ${value}`),
  );

test("tokens are cut from the raw text", () => {
  assert.deepEqual(
    [0, 1, 2, 3].map(i => tokens().text(i)),
    ["a", "b", "", "cd"],
  );
});

test("tokens whose texts do not follow each other are cut where they say", () => {
  const track = new Tokens(
    { n: 2, arrays: { starts: pack([2, 0], Int16Array, "i2"), stops: pack([4, 1], Uint8Array, "u1") } },
    "abcd",
  );
  assert.deepEqual(
    [0, 1].map(i => track.text(i)),
    ["cd", "a"],
  );
});

test("an overlay is offered when the track holds what it needs", () => {
  assert.deepEqual(
    available(tokens()).map(each => each.key),
    ["loss_mask", "response_mask"],
  );
  assert.ok(available(tokens({ versions: [-1, 7, 8, 9] })).some(each => each.key === "staleness"));
  assert.ok(!available(tokens({ versions: [-1, 7, 8, 9] }, null)).some(each => each.key === "staleness"));
});

test("versions beyond 32 bits keep their staleness", () => {
  const now = 1764530000000;
  const track = tokens({ versions: [-1, now - 2, now - 1, now] }, now);
  near(overlay("staleness").values(track), [NaN, 2, 1, 0]);
});

test("derived values follow their definitions", () => {
  const track = tokens({
    versions: [-1, 7, 8, 9],
    logprobs: [0, -1, -2, -0.5],
    prox_logprobs: [0, -1.1, -2, -0.4],
    new_logprobs: [0, -1, -2.1, -0.4],
    ref_logprobs: [0, -1.1, -1, -0.4],
    advantages: [0, 2, -1, 0],
  });
  near(overlay("staleness").values(track), [NaN, 2, 1, 0]);
  near(overlay("mismatch").values(track), [NaN, -0.1, 0, 0.1]);
  near(overlay("ppo_ratio").values(track), [NaN, Math.exp(0.1), Math.exp(-0.1), 1]);
  near(overlay("ref_kl").values(track), [NaN, 0, Math.exp(1) - 2, 0]);
  const weights = [2 * (1 - Math.exp(-1)), 1 - Math.exp(-2), 0];
  const sum = weights[0] + weights[1];
  near(overlay("update_share").values(track), [NaN, weights[0] / sum, weights[1] / sum, 0]);
});

test("one advantage of the whole rollout holds at every token of the loss", () => {
  const track = new Tokens(
    {
      n: 4,
      arrays: Object.fromEntries(
        ["loss_mask", "response_mask"].map(name => [name, pack([0, 1, 0, 1], Uint8Array, "u1")]),
      ),
      row_advantage: -0.5,
    },
    "",
  );
  near(track.get("advantages"), [NaN, -0.5, NaN, -0.5]);
});

test("colours span the range and mark what is not finite", () => {
  const painted = paint(overlay("logprob"), tokens({ logprobs: [0, 0, -4, -Infinity] }));
  assert.equal(painted.classOf(0), "m0");
  assert.equal(painted.classOf(1), "s0");
  assert.equal(painted.classOf(2), "s12");
  assert.equal(painted.classOf(3), "nf");
  const signed = paint(overlay("advantage"), tokens({ advantages: [0, 1, -1, 0] }));
  assert.deepEqual([1, 2, 3].map(signed.classOf), ["p12", "n12", "p0"]);
});

test("rollouts side by side share the range and the bands", () => {
  const [a, b] = [
    tokens({ logprobs: [0, -1, -2, -2], versions: [-1, 3, 3, 3] }),
    tokens({ logprobs: [0, -4, -8, -8], versions: [-1, 2, 3, 3] }),
  ];
  const [left, right] = [paint(overlay("logprob"), a, [b]), paint(overlay("logprob"), b, [a])];
  assert.deepEqual(left.domain, right.domain);
  assert.equal(left.values.length, 4);
  assert.notEqual(left.classOf(3), paint(overlay("logprob"), a).classOf(3));
  assert.equal(paint(overlay("version"), a, [b]).classOf(3), paint(overlay("version"), b, [a]).classOf(3));
  assert.deepEqual(paint(overlay("logprob"), a, [tokens()]).domain, paint(overlay("logprob"), a).domain);
});

test("jumping stops at edges of masks and at extreme values", () => {
  assert.deepEqual(extremes(paint(overlay("loss_mask"), tokens())), [1]);
  assert.deepEqual(extremes(paint(overlay("advantage"), tokens({ advantages: [0, 1, -3, 0] })), 1), [2]);
});

test("smoothing starts unbiased and passes over gaps", () => {
  assert.deepEqual(smooth([1, 2], 0), [1, 2]);
  const line = smooth([4, null, 4, 4], 0.9);
  assert.equal(line[1], null);
  for (const i of [0, 2, 3]) assert.ok(Math.abs(line[i] - 4) < 1e-9);
});

test("what is unknown is a gap in the line, and a value alone is a point", () => {
  assert.equal(
    path([
      [0, 1],
      [1, 2],
      [2, NaN],
      [3, 4],
    ]),
    "M0.0 1.0L1.0 2.0M3.0 4.0",
  );
  assert.deepEqual(lone([1, 2, null, 4, null]), [3]);
  assert.deepEqual(lone([5]), [0]);
});

test("ticks are round and inside", () => {
  assert.deepEqual(ticks(0, 1), [0, 0.5, 1]);
  assert.deepEqual(ticks(-1, 1), [-1, 0, 1]);
});

test("there are two ticks or more wherever values differ", () => {
  for (const [low, high] of [
    [0.41, 0.59],
    [0.11, 0.67],
    [0.65, 0.78],
    [-19.2, -0.4],
    [3e-7, 8.8e-7],
  ]) {
    const found = ticks(low, high);
    assert.ok(found.length > 1 && found.length < 7 && found[0] >= low && found.at(-1) <= high * 1.001, `${found}`);
  }
});

test("quantiles interpolate and leave out what is not finite", () => {
  assert.equal(quantile([1, 2, 3, NaN, Infinity], 0.5), 2);
  assert.ok(Number.isNaN(quantile([], 0.5)));
  assert.equal(quantile([3], 1), 3);
});

test("a quantile is what sorting all values gives", () => {
  let seed = 7;
  const draw = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
  for (const size of [1, 2, 3, 10, 101, 1000]) {
    for (const values of [
      Array.from({ length: size }, draw),
      Array.from({ length: size }, () => Math.round(draw() * 3)),
      Array.from({ length: size }, (_, i) => i),
      Array.from({ length: size }, (_, i) => 5 - i),
    ]) {
      const sorted = [...values].sort((a, b) => a - b);
      for (const share of [0, 0.01, 0.25, 0.5, 0.99, 1]) {
        const at = share * (size - 1);
        const low = Math.floor(at);
        const expected = sorted[low] + (sorted[Math.min(low + 1, size - 1)] - sorted[low]) * (at - low);
        assert.equal(quantile(values, share), expected, `${size} values, ${share}`);
      }
    }
  }
});
