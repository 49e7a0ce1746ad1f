import assert from "node:assert/strict";
import test from "node:test";
import { apply, format, parse } from "../../../rollout_traces/inspector/lib/state.js";

test("a state survives the address", () => {
  const state = {
    page: "explore",
    project: "a b",
    run: "x/y?",
    split: "rollout",
    step: "4",
    where: "flags has 'truncated' & 1",
    view: "tokens",
  };
  assert.deepEqual(parse(format(state)), state);
});

test("names that gradio reads itself are not used", () => {
  const names = [...new URLSearchParams(format({ page: "health", view: "tokens" })).keys()];
  assert.deepEqual(names, ["tab", "mode"]);
});

test("unknown names in the address are passed over", () => {
  assert.deepEqual(parse("?evil=1&step=3"), { step: "3" });
});

test("another step drops the group and sample, the same step keeps them", () => {
  const state = { run: "r", step: "3", group: "1", sample: "2", where: "x" };
  assert.deepEqual(apply(state, { step: 4 }), { run: "r", step: "4", where: "x" });
  assert.deepEqual(apply(state, { step: 3 }), state);
  assert.deepEqual(apply(state, { step: 4, group: 0, sample: 1 }), {
    run: "r",
    step: "4",
    where: "x",
    group: "0",
    sample: "1",
  });
});

test("filling in what was open drops nothing", () => {
  assert.deepEqual(apply({ step: "3", group: "1" }, { run: "r", split: "rollout" }), {
    step: "3",
    group: "1",
    run: "r",
    split: "rollout",
  });
});
