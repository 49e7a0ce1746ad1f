import assert from "node:assert/strict";
import test from "node:test";
import { actionLetters, aligned, firstDifference } from "../../../rollout_traces/inspector/components/group/actions.js";
import { lengthOf } from "../../../rollout_traces/inspector/components/turn_strip/script.js";

const call = (name, text) => ({ kind: "call", name, text });
const answer = text => ({ kind: "answer", name: "answer", text });
const member = (...actions) => ({ actions });
const drawn = members => aligned(members).map(row => row.map(action => (action ? action.text : "-")).join(" "));

test("equal actions have one letter, the most frequent the first", () => {
  const letters = actionLetters([member(call("f", "1"), answer("x")), member(call("f", "2"), answer("x"))]);
  assert.deepEqual(
    [...letters.values()].map(each => [each.letter, each.shared]),
    [
      ["A", true],
      ["B", false],
      ["C", false],
    ],
  );
  assert.equal(letters.get("answer answer x").letter, "A");
});

test("of actions that are cut alike the whole tells which are equal", () => {
  const [a, b] = ["1", "2"].map(whole => ({ ...call("f", "long…"), whole }));
  assert.equal(actionLetters([member(a), member(b), member({ ...a })]).size, 2);
  assert.equal(firstDifference(member(a), member(b)).at, 0);
});

test("the first action that differs is named, also where one did less", () => {
  const [a, b] = [member(call("f", "1"), answer("x")), member(call("f", "1"))];
  assert.deepEqual(firstDifference(a, b), { at: 1, best: answer("x"), worst: null });
  assert.equal(firstDifference(a, a), null);
});

test("after they part, samples stand in one column again", () => {
  assert.deepEqual(
    drawn([
      member(call("f", "1"), call("g", "2"), answer("x")),
      member(call("f", "1"), call("h", "9"), call("g", "2"), answer("y")),
      member(answer("x")),
      member(call("g", "2"), answer("x")),
    ]),
    ["1 - 2 x", "1 9 2 y", "- - - x", "- - 2 x"],
  );
});

test("calls of one tool with other arguments share a column", () => {
  assert.deepEqual(drawn([member(call("f", "1"), answer("x")), member(call("f", "2"), answer("x"))]), ["1 x", "2 x"]);
});

test("no action is lost and none changes its place in its own sample", () => {
  let seed = 3;
  const random = most => {
    seed = (seed * 16807) % 2147483647;
    return seed % most;
  };
  for (let round = 0; round < 200; round++) {
    const members = Array.from({ length: 1 + random(5) }, () =>
      member(...Array.from({ length: random(6) }, () => call("fgh"[random(3)], String(random(3))))),
    );
    const rows = aligned(members);
    rows.forEach((row, at) => assert.deepEqual(row.filter(Boolean), members[at].actions));
    assert.equal(new Set(rows.map(row => row.length)).size, 1);
  }
});

test("a rollout is as long as its tokens, or its turns where those are unobserved", () => {
  assert.deepEqual([[{ n: 3 }, { n: 40 }], [{ n: 0 }, { n: 0 }, { n: 0 }], []].map(lengthOf), [43, 3, 0]);
});
