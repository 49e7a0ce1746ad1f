import assert from "node:assert/strict";
import test from "node:test";
import { nesting, parsed, sizeOf } from "../../../rollout_traces/inspector/lib/json_view.js";

test("objects and lists are read, other text is not", () => {
  assert.deepEqual(parsed(' {"a": [1]}'), { a: [1] });
  for (const text of ["", "1", '"a"', "{a", "[1,", "see {}"]) assert.equal(parsed(text), undefined);
});

test("brackets inside text do not nest", () => {
  assert.equal(nesting('{"a": "[[[\\"[[", "b": [[]]}'), 3);
});

test("what is nested beyond use stays text", () => {
  assert.equal(parsed("[".repeat(20_000) + "]".repeat(20_000)), undefined);
});

test("sizes are said in items or keys and characters", () => {
  assert.equal(sizeOf([1, 2]), "2 items, 5 characters");
  assert.equal(sizeOf({ a: 1 }), "1 key, 7 characters");
});
