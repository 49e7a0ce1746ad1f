import assert from "node:assert/strict";
import test from "node:test";
import { number, percent, seconds, signed } from "../../../rollout_traces/inspector/lib/format.js";
import { duration } from "../../../rollout_traces/inspector/components/live/opened.js";
import { firstWords, inert, showWhitespace, spoken } from "../../../rollout_traces/inspector/lib/text.js";
import { aroundHits, expression, terms } from "../../../rollout_traces/inspector/lib/highlight.js";

test("characters that act become marks", () => {
  assert.equal(inert("a\u202eb\u0000\u001b[31m\u200b\ufeff"), "a⟨RLO⟩b␀␛[31m⟨ZWSP⟩⟨BOM⟩");
  assert.equal(inert("tab\tline\nemoji 👨‍👩‍👧 ok"), "tab\tline\nemoji 👨‍👩‍👧 ok");
  assert.equal(inert("a\r\nb\rc"), "a\nb␍c");
});

test("a column is said in words, and a name that somebody gave as it was given", () => {
  assert.equal(spoken("flags mask_leak"), "flags mask leak");
  assert.equal(spoken("“train/grad_norm”"), "“train/grad_norm”");
  assert.equal(spoken("mean_logprob on “a_b”"), "mean logprob on “a_b”");
});

test("tag characters spell out what they hide", () => {
  const hidden = text => Array.from(text, sign => String.fromCodePoint(0xe0000 + sign.codePointAt(0))).join("");
  assert.equal(inert(`hi${hidden("obey me")}!`), "hi\u27e8TAG obey me\u27e9!");
  assert.equal(showWhitespace(hidden("a")), "\u27e8TAG\u00b7a\u27e9");
  for (let code = 0xe0000; code <= 0xe007f; code++)
    assert.ok(!inert(String.fromCodePoint(code)).includes(String.fromCodePoint(code)));
  assert.equal(inert("\u2764\ufe0f a\ufe0f\ufe01\u{e0100}"), "\u2764\ufe0f a\u27e83 VS\u27e9");
});

test("marks that pile up on a letter are counted", () => {
  assert.equal(inert("e\u0301 \u0928\u093f"), "e\u0301 \u0928\u093f");
  assert.equal(inert("a" + "\u0301".repeat(1000)), "a" + "\u0301".repeat(8) + "\u27e8+992 marks\u27e9");
});

test("whitespace can be seen", () => {
  assert.equal(showWhitespace("a b\n\tc"), "a·b↵\n→\tc");
});

test("first words are one line", () => {
  assert.equal(firstWords(" a\n  b ", 10), "a b");
  assert.equal(firstWords("x".repeat(50), 10).length, 10);
});

test("durations while one looks are short", () => {
  assert.deepEqual([5.04, 119.9, 123, 7199, 43_380].map(duration), [
    "5.0 s",
    "119 s",
    "2:03 min",
    "119:59 min",
    "12:03 h",
  ]);
});

test("numbers read well", () => {
  assert.deepEqual(
    [0.20000000298, 1234567, -0.5, 4.2e-7, 3, NaN, null, Infinity, 12.3456].map(v => number(v)),
    ["0.2", "1,234,567", "−0.5", "4.2e-7", "3", "NaN", "–", "∞", "12.35"],
  );
  assert.equal(signed(0.5), "+0.5");
  assert.deepEqual([0.25, 0, 0.0031, 1].map(percent), ["25%", "0%", "0.31%", "100%"]);
  assert.deepEqual(
    [0.0071, 65.48, 1234, 20000, 1e9, null].map(v => seconds(v)),
    ["7 ms", "65.5 s", "20.6 min", "5.6 h", "11,574 days", "\u2013"],
  );
});

test("search terms are words and quoted phrases", () => {
  assert.deepEqual(terms('I "cannot help" You'), ["cannot help", "You"]);
  assert.deepEqual(
    terms('"open end'),
    ["open end"].flatMap(term => term.split(" ")),
  );
});

test("what is searched for is found in any case, signs as they stand, white space as any", () => {
  const found = (query, text) => [...text.matchAll(expression(terms(query)))].map(match => match[0]);
  assert.deepEqual(found('"the answer"', "The\n answer, the·answer and the-answer"), ["The\n answer", "the·answer"]);
  assert.deepEqual(found("boxed{4", "\\boxed{42} boxed(4"), ["boxed{4"]);
  assert.deepEqual(found("a.c abc", "abcd a.c"), ["abc", "a.c"]);
  assert.deepEqual(found('"\u00b7 \u00b7"', "a \u00b7 b"), []);
});

test("a snippet is cut so that what was found is near its beginning", () => {
  const long = "\u2026 quite a number of words come before what is looked for, division by  zero, and after";
  assert.deepEqual(aroundHits(long, '"Division by zero"'), [
    "\u2026 what is looked for, ",
    "division by  zero",
    ", and after",
  ]);
  assert.deepEqual(aroundHits("at once found", "at"), ["", "at", " once found"]);
  assert.deepEqual(aroundHits("a zero, then one division", "division zero"), [
    "a ",
    "zero",
    ", then one ",
    "division",
    "",
  ]);
  assert.equal(aroundHits("nothing here", "absent"), null);
  assert.equal(aroundHits("nothing here", ""), null);
});
