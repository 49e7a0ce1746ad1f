import assert from "node:assert/strict";
import test from "node:test";
import { Slices } from "../../../rollout_traces/inspector/lib/slices.js";

// A clock that only moves when a piece of work takes its time, and frames that come when they are asked for.
function rig(options = {}) {
  const rig = { time: 0, frames: [], done: [] };
  rig.slices = new Slices({
    frame: 50,
    whole: 1000,
    ...options,
    now: () => rig.time,
    soon: callback => rig.frames.push(callback),
  });
  rig.work = function* (name, pieces, cost) {
    for (let i = 0; i < pieces; i++) {
      rig.time += cost;
      rig.done.push(name + i);
      yield;
    }
  };
  rig.frame = () => {
    const before = rig.time;
    rig.frames.shift()?.();
    return rig.time - before;
  };
  return rig;
}

test("short work is done at once", () => {
  const { slices, work, done, frames } = rig();
  slices.run(work("a", 3, 10));
  assert.deepEqual(done, ["a0", "a1", "a2"]);
  assert.ok(frames.length <= 1);
});

test("all work shares the budget of a frame", () => {
  const r = rig();
  for (const name of "abcde") r.slices.run(r.work(name, 10, 10));
  assert.equal(r.time, 50);
  while (r.frames.length) assert.ok(r.frame() <= 60);
  assert.equal(r.done.length, 50);
});

test("work that used up its time is told so, and the next goes on", () => {
  const r = rig();
  let late = 0;
  r.slices.run(r.work("a", 1e6, 10), {
    late: () => {
      late += 1;
    },
  });
  r.slices.run(r.work("b", 2, 10));
  while (r.frames.length) r.frame();
  assert.equal(late, 1);
  assert.equal(r.done.filter(name => name.startsWith("a")).length, 100);
  assert.deepEqual(r.done.slice(-2), ["b0", "b1"]);
});

test("work that nobody wants any more ends", () => {
  const r = rig();
  let wanted = true;
  r.slices.run(r.work("a", 1e6, 10), { wanted: () => wanted });
  wanted = false;
  r.frame();
  assert.equal(r.done.length, 5);
});
