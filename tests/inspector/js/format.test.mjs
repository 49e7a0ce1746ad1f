// Numbers as a person reads them: one minus sign in all of them.
import test from "node:test";
import assert from "node:assert/strict";
import {
  compact,
  number,
  pValue,
  percent,
  seconds,
  signed,
  signedBeside,
} from "../../../rollout_traces/inspector/lib/format.js";

test("below zero every kind of number has the same sign", () => {
  assert.deepEqual(
    [number(-0.05), signed(-0.05), percent(-0.05), compact(-1234), compact(-2.5e7), compact(-3e9)],
    ["\u22120.05", "\u22120.05", "\u22125%", "\u22121.2k", "\u221225.0M", "\u22123.0G"],
  );
});

test("a figure has its thousands apart, whole or not, and zero has no sign", () => {
  assert.deepEqual(
    [number(10508), number(10507.6), number(-1234.5), number(-0)],
    ["10,508", "10,508", "\u22121,234", "0"],
  );
});

test("a share has as many places as it can use", () => {
  assert.deepEqual([0, 0.0005, 0.012, 0.5, null].map(percent), ["0%", "0.05%", "1.2%", "50%", "\u2013"]);
});

test("none and all are said of nothing else", () => {
  assert.deepEqual([1 / 40000, -1 / 40000, 0.9975, -0.9975, 0.9949, 1, -0.504].map(percent), [
    "<0.01%",
    ">\u22120.01%",
    ">99%",
    "<\u221299%",
    "99%",
    "100%",
    "\u221250%",
  ]);
});

test("a number below a tenth has three digits that count", () => {
  assert.deepEqual(
    [0.0015, 0.00149, 0.0043, -0.012345, 0.0996, 0.5, 0.000149].map(value => number(value)),
    ["0.0015", "0.00149", "0.0043", "\u22120.0123", "0.0996", "0.5", "1.49e-4"],
  );
  assert.deepEqual([number(999.7), number(999.96)], ["999.7", "1,000"]);
});

test("a power of ten has no zeros before it and no plus", () => {
  assert.deepEqual(
    [5e-4, -5e-4, 0.00025, 1234567.8, 1e6 + 0.5].map(value => number(value)),
    ["5e-4", "\u22125e-4", "2.5e-4", "1.23e6", "1e6"],
  );
});

test("a p value is said as the commands say it", () => {
  assert.deepEqual([0, 1, 0.0432, 0.00012, 3.2e-7, 1e-12, null].map(pValue), [
    "0",
    "1",
    "0.043",
    "0.00012",
    "3e-7",
    "1e-12",
    "\u2013",
  ]);
});

test("parts of one sum have the places of the largest", () => {
  assert.deepEqual(
    [-0.274, 0.00194, 8.34e-6, 0].map(value => signedBeside(value, 0.274)),
    ["\u22120.274", "+0.002", "0", "0"],
  );
  assert.deepEqual(
    [12.345, -0.5].map(value => signedBeside(value, 12.345)),
    ["+12.3", "\u22120.5"],
  );
});

test("a time is in the unit that it rounds to", () => {
  assert.deepEqual([0, 0.0002, 0.0125, 0.9997, 119.97].map(seconds), ["0 ms", "<1 ms", "13 ms", "1.0 s", "2.0 min"]);
});
