import { test } from "node:test";
import assert from "node:assert/strict";
import {
  along,
  hiddenBySmoothing,
  logTicks,
  parted,
  readout,
  smooth,
  tickTexts,
  valueAxis,
  weightFor,
} from "../../../rollout_traces/inspector/components/charts/scale.js";
import { percent } from "../../../rollout_traces/inspector/lib/format.js";
import { chartsOf, drawnCharts } from "../../../rollout_traces/inspector/components/charts/script.js";
import {
  asked,
  formatAgainst,
  kindOf,
  parseAgainst,
} from "../../../rollout_traces/inspector/components/explain/against.js";
import { phraseExpression } from "../../../rollout_traces/inspector/lib/highlight.js";

test("a log axis has powers of ten at equal distances, and says what it cannot show", () => {
  const axis = valueAxis([0.01, 0.1, 1, 0, -2], { log: true });
  assert.equal(axis.dropped, 2);
  assert.ok(Math.abs(axis.y(0.1) - axis.y(0.01) - (axis.y(1) - axis.y(0.1))) < 1e-12);
  assert.ok(Number.isNaN(axis.y(0)));
  assert.deepEqual(logTicks(1, 1000), [1, 10, 100, 1000]);
});

test("values that differ by rounding alone are a flat line, whose ticks end", () => {
  const values = [0.4714045207910317, 0.47140452079103173];
  for (const axis of [valueAxis(values), valueAxis(values, { log: true }), valueAxis([1e300, 1e300 * (1 + 1e-15)])]) {
    assert.ok(axis.ticks.length <= 8);
    assert.ok(!axis.log || Math.abs(axis.y(values[0]) - 0.5) < 0.01);
  }
  assert.ok(Math.abs(valueAxis(values).y(values[1]) - 0.5) < 0.01);
  assert.deepEqual(valueAxis([0, 0]).ticks, [0]);
  assert.deepEqual(valueAxis([1, 1]).ticks, [1]); // a share of 1 has no tick of 110%
});

test("ticks that would read the same get more digits", () => {
  const thousandths = value => value.toFixed(3);
  assert.deepEqual(tickTexts([0.0351, 0.0352, 0.0353], thousandths), ["0.0351", "0.0352", "0.0353"]);
  assert.deepEqual(tickTexts([-0.0352, -0.0351], thousandths), ["\u22120.0352", "\u22120.0351"]);
  assert.deepEqual(tickTexts([0.1, 0.2], thousandths), ["0.100", "0.200"]);
  assert.deepEqual(
    tickTexts([10508.4, 10508.6], () => "10,508"),
    ["10,508.4", "10,508.6"],
  );
  assert.deepEqual(
    tickTexts([0.1201, 0.1202], share => `${(share * 100).toFixed(0)}%`),
    ["12.01%", "12.02%"],
  );
  assert.deepEqual(tickTexts([0.99, 0.995, 1], percent), ["99.0%", "99.5%", "100.0%"], "no tick is >99%");
});

test("without a value above 0 the axis stays linear", () => {
  assert.equal(valueAxis([-1, 0], { log: true }).log, false);
});

test("steps lie where the run had come to, by rollouts or tokens", () => {
  const progress = { steps: [2, 4], rollouts: [10, 30], tokens: [null, 500] };
  assert.deepEqual(along("step", progress, [2, 3]), [2, 3]);
  assert.deepEqual(along("rollouts", progress, [2, 3, 4, 9]), [10, 10, 30, 30]);
  assert.deepEqual(along("rollouts", progress, [1]), [NaN]);
  assert.deepEqual(along("tokens", progress, [2, 4]), [NaN, 500]);
});

test("few points are not smoothed unless asked", () => {
  assert.equal(weightFor(undefined, 40), 0); // a step down stays one step
  assert.ok(weightFor(undefined, 100) > 0);
  assert.equal(weightFor("0.3", 5), 0.3);
});

test("a readout of several series names them", () => {
  assert.equal(readout("step 3", [{ name: "a", value: 1 }]), "step 3: 1");
  assert.equal(
    readout("step 3", [
      { name: "a", value: 1 },
      { name: "b", value: 2 },
    ]),
    "step 3: a 1, b 2",
  );
});

test("charts of one and of several series stand in the address", () => {
  assert.deepEqual(chartsOf("a|b,c"), [["a", "b"], ["c"]]);
  assert.deepEqual(drawnCharts([["a", "gone"], ["gone"]], ["a"], { a: {} }), [["a"]]);
  assert.deepEqual(drawnCharts([], ["a", "b"], { a: {}, b: {} }), [["a"], ["b"]]);
});

test("what A is compared with survives the address", () => {
  const parts = { run: "other run", steps: "10:20", where: "engine = 'a&b'" };
  assert.deepEqual(parseAgainst(formatAgainst(parts)), parts);
  assert.equal(formatAgainst({}), null);
  assert.equal(kindOf({}), "before");
  assert.equal(kindOf(parts), "run");
  assert.deepEqual(asked({ run: "r", step: "5" }).step, 5);
  assert.deepEqual(asked({ run: "r", step: "5", steps: "1:2" }).step, null);
});

test("a phrase is found across punctuation, as whole words", () => {
  const found = text => [...text.matchAll(phraseExpression("certain of this"))].map(match => match[0]);
  assert.deepEqual(found("I am Certain — of\nthis."), ["Certain — of\nthis"]);
  assert.deepEqual(found("uncertain of this"), []);
  assert.deepEqual([..."(?!".matchAll(phraseExpression("(?!"))], []);
});

test("steps that only an older attempt has are a line of their own", () => {
  const series = { steps: [1, 2, 3, 4], values: [0.1, 0.2, 0.3, 0.4], superseded: [3, 4] };
  assert.deepEqual(parted(series), [
    [0.1, 0.2, null, null],
    [null, null, 0.3, 0.4],
  ]);
  assert.deepEqual(parted({ steps: [1], values: [5] }), [[5], [null]]);
});

test("what smoothing hides by more than four units of noise is found, and noise is not", () => {
  const noise = i => 0.02 * Math.sin(i * i * 12.9898);
  const values = Array.from({ length: 60 }, (_, i) => 0.07 + noise(i));
  assert.deepEqual(hiddenBySmoothing(values, smooth(values, 0.7)), []);
  const spike = values.map((value, i) => (i === 30 ? 8.4 : value));
  assert.deepEqual(hiddenBySmoothing(spike, smooth(spike, 0.7)), [30]); // and not where the line comes back from it
  const level = values.map((value, i) => (i < 30 ? value : value + 1));
  assert.deepEqual(hiddenBySmoothing(level, smooth(level, 0.7)), [30, 31, 32]); // the line is near after these
  assert.deepEqual(hiddenBySmoothing([1, 1, 1, 1], smooth([1, 1, 1, 1], 0.7)), []);
  assert.deepEqual(hiddenBySmoothing([null, NaN, 2], [null, NaN, 2]), []);
  const still = Array.from({ length: 50 }, () => 25); // the line differs from it in its last digit
  assert.deepEqual(hiddenBySmoothing(still, smooth(still, 0.7)), []);
});
