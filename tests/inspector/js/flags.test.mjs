import assert from "node:assert/strict";
import test from "node:test";
import { grouped, tokenMarks, usualLine, worst } from "../../../rollout_traces/inspector/lib/flags.js";
import { marksOf, nextTurn } from "../../../rollout_traces/inspector/components/transcript/outline.js";
import { extremes } from "../../../rollout_traces/inspector/components/overlays/registry.js";

const flag = (name, severity, turn = null) => ({ name, severity, turn, message: name });

test("one entry a name, the worst first", () => {
  const entries = grouped([flag("a", "info"), flag("b", "warn", 1), flag("c", "error"), flag("b", "warn", 2)]);
  assert.deepEqual(
    entries.map(each => [each.name, each.flags.length]),
    [
      ["c", 1],
      ["b", 2],
      ["a", 1],
    ],
  );
  assert.equal(worst([flag("a", "info"), flag("b", "warn")]), "warn");
  assert.equal(worst([]), null);
});

test("tokens are marked by their worst flag, and not by what is usual in the run", () => {
  const at = (severity, start, stop, usual = false) => ({ ...flag("a", severity), start, stop, usual });
  const marks = tokenMarks([at("error", 1, 2), at("info", 0, 3), at("warn", 3, 4), at("error", 4, 5, true)], 5);
  assert.deepEqual([...marks], [1, 3, 1, 2, 0]);
  assert.equal(tokenMarks([at("error", 0, 2, true), at("warn", null, null)], 2), null);
});

test("turns are marked by their worst flag, their calls and what failed", () => {
  const turn = calls => ({ role: "assistant", tool_calls: calls });
  const marks = marksOf({
    turns: [turn([]), turn([{ parsed: false }]), turn([])],
    flags: [flag("a", "info", 0), flag("tool_error", "warn", 2)],
  });
  assert.deepEqual(marks, [
    { severity: "info", calls: 0, failed: false },
    { severity: null, calls: 1, failed: true },
    { severity: "warn", calls: 0, failed: true },
  ]);
});

test("the next turn of a kind goes around the end", () => {
  const turns = [{ role: "user" }, { role: "assistant" }, { role: "tool" }, { role: "assistant" }];
  const kind = turn => turn.role === "assistant";
  assert.deepEqual(
    [-1, 1, 3].map(from => nextTurn(turns, [], from, 1, kind)),
    [1, 3, 1],
  );
  assert.equal(nextTurn(turns, [], 0, -1, kind), 3);
  assert.equal(
    nextTurn(turns, [], 0, 1, () => false),
    -1,
  );
});

test("the greatest extreme comes first, and what lies in the middle is none", () => {
  const painted = { overlay: { kind: "diverging" }, domain: [-1, 1], values: Float32Array.from([0, 0.2, 0, -0.9, 0]) };
  assert.deepEqual(extremes(painted), [3, 1]);
});

test("what is usual for a run is said in one line", () => {
  assert.equal(usualLine([]), null);
  assert.match(
    usualLine([
      { name: "mixed_versions", share: 0.134 },
      { name: "stale", share: 1 },
    ]),
    /^common in this run .*: mixed versions 13%, stale 100%$/,
  );
});
