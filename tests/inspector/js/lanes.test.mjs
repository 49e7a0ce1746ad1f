// Where spans are drawn.

import { strict as assert } from "node:assert";
import { test } from "node:test";
import { idle, layout, ticks } from "../../../rollout_traces/inspector/components/lanes/layout.js";

function answer(spans, { lanes = 2, rollouts = 8, ms = 1000 } = {}) {
  const column = key => spans.map(span => span[key]);
  return {
    ms,
    lanes: Array.from({ length: lanes }, () => ({})),
    rollouts: Array.from({ length: rollouts }, () => ({})),
    spans: { lane: column(0), rollout: column(1), kind: column(2), start: column(3), ms: column(4) },
  };
}

test("rollouts that are on a lane at one time never share a line, and free lines are used again", () => {
  let seed = 7;
  const random = n => (seed = (seed * 48271) % 2147483647) % n;
  const spans = Array.from({ length: 300 }, () => [random(3), random(40), 2, random(900), 1 + random(60)]);
  const given = answer(spans, { lanes: 3, rollouts: 40 });
  const { line } = layout(given);
  const stays = new Map();
  spans.forEach(([lane, rollout, , start, ms], i) => {
    const key = `${lane}/${rollout}`;
    const stay = stays.get(key) || { lane, line: line[i], from: Infinity, to: 0 };
    assert.equal(line[i], stay.line, "a rollout keeps its line in a lane");
    stays.set(key, { ...stay, from: Math.min(stay.from, start), to: Math.max(stay.to, start + ms) });
  });
  const all = [...stays.values()];
  for (const a of all)
    for (const b of all)
      if (a !== b && a.lane === b.lane && a.line === b.line) assert.ok(a.to <= b.from || b.to <= a.from, "no overlap");
  const apart = answer([
    [0, 0, 2, 0, 10],
    [0, 1, 2, 10, 10],
    [0, 2, 2, 5, 10],
  ]);
  assert.deepEqual([...layout(apart).line], [0, 0, 1]);
});

test("lanes lie below each other and none is higher than what can be seen", () => {
  const many = answer(
    Array.from({ length: 500 }, (_, i) => [0, i, 2, 0, 10]),
    { rollouts: 500 },
  );
  const [first, second] = layout(many).lanes;
  assert.equal(first.height, 150);
  assert.ok(second.top > first.height && first.line * 500 <= 150.001);
});

test("idle time is what no working span covers", () => {
  const given = answer([
    [0, 0, 2, 100, 100],
    [0, 1, 2, 150, 200],
    [0, 2, 3, 400, 500],
    [1, 3, 2, 0, 1000],
  ]);
  assert.deepEqual(idle(given, new Set([2])), [
    [
      [0, 100],
      [350, 1000],
    ],
    [],
  ]);
  assert.deepEqual(idle(given, new Set([2, 3]))[0], [
    [0, 100],
    [350, 400],
    [900, 1000],
  ]);
});

test("ticks are round, and no more than asked for", () => {
  assert.deepEqual(ticks(0, 2360, 12), [0, 200, 400, 600, 800, 1000, 1200, 1400, 1600, 1800, 2000, 2200]);
  assert.ok(ticks(0, 3.6e7, 10).length <= 11);
  assert.deepEqual(ticks(0, 1, 10), [0, 1]);
  assert.deepEqual(ticks(0, 1.7e5, 4), [0, 6e4, 1.2e5], "minutes, not 50 s");
});
