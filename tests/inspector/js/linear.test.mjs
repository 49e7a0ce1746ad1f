// Whatever a rollout repeats, reading it takes time in proportion to its length: every rule over 100,000 signs.

import assert from "node:assert/strict";
import test from "node:test";
import { measure } from "../../../rollout_traces/inspector/lib/formula.js";
import { expression, terms } from "../../../rollout_traces/inspector/lib/highlight.js";
import { nesting, parsed } from "../../../rollout_traces/inspector/lib/json_view.js";
import { blocksOf } from "../../../rollout_traces/inspector/lib/markdown.js";
import { parseInline } from "../../../rollout_traces/inspector/lib/markdown_inline.js";
import { pieces } from "../../../rollout_traces/inspector/lib/markdown_view.js";
import { firstWords, inert, showWhitespace } from "../../../rollout_traces/inspector/lib/text.js";

const SIGNS = 100_000;
const ALLOWED_MS = 200;

const MARKERS = [
  ..."`$*_~[]()!#>|-+=:.,;<>{}\\/\"'&^%@1a \t\n\r\u0301\u202e\u200b\u{e0041}\ufe0f\u00b7\u21b5\u2028\u4e2d",
  "``",
  "```",
  "$$",
  "**",
  "__",
  "~~",
  "![",
  "](",
  "[a](",
  "[](",
  "\\(",
  "\\[",
  "\\)",
  "\\]",
  "\\\\",
  "\\$",
  "$a",
  "$1",
  "$1=",
  "a$",
  " $",
  "$ ",
  "**a",
  "a**",
  "** ",
  " **",
  "*a",
  "_a",
  "a_",
  "__a",
  "~~a",
  "~~ ",
  "- ",
  "- a\n",
  "1. ",
  "1. a\n  ",
  "* * ",
  "> ",
  ">",
  ">> ",
  "# ",
  "#",
  "a #",
  "|",
  "|a",
  "|-",
  "|a|\n",
  "|-|\n",
  "|:-:|",
  "a|b\n-|-\n",
  "- a\n  - b\n",
  "```\n",
  "~~~\n",
  "$$\n",
  "\\[\n",
  "\\]\n",
  "    at f\n",
  '  File "a"\n',
  "Traceback (most recent call last)\n",
  "\n\n",
  " \n",
  "\r\n",
  "\\frac",
  "\\frac{",
  "\\sqrt{",
  "\\frac{a}{b}",
  "\\left(",
  "\\begin{a}",
  "x^{",
  "x_",
  "\\text{",
  "word ",
  "the answer is ",
  '"',
  '"a',
  '{"a":',
  "[[",
  '{"a":[',
  "a\u0301\u0302\u0303",
  "\u{1f468}\u200d\u{1f469}\u200d",
  "\u0627\u0644\u0639",
];

const longest = " ".repeat(3000);
const SHAPES = [
  ...MARKERS.map(marker => [marker, length => marker.repeat(Math.ceil(length / marker.length)).slice(0, length)]),
  // A rule opened once, or at every line, that never closes, and runs of every length.
  ...["`", "$", "$$", "**", "_", "[a](", "\\(", "\\[", "![", "- ", "# ", "> ", "| "].map(marker => [
    `${marker} then words`,
    length => marker + "word ".repeat(length / 5),
  ]),
  ...["# ", "- ", "1. ", "|", "> ", "$", "```"].map(marker => [
    `${marker} and white space`,
    length => `${marker}a${longest}\u2028`.repeat(Math.ceil(length / 3005)),
  ]),
  [
    "backticks of every length",
    length => {
      let text = "";
      for (let n = 1; text.length < length; n++) text += "`".repeat(n) + " ";
      return text;
    },
  ],
  [
    "stars of every length",
    length => {
      let text = "";
      for (let n = 1; text.length < length; n++) text += "*".repeat(n) + "a";
      return text;
    },
  ],
  ["a backslash before each dollar", length => "\\".repeat(length / 2) + "$\\".repeat(length / 4)],
];

const WANTED = [
  expression(terms('"\u00b7 \u00b7 \u00b7 \u00b7"')),
  expression(terms(`"${"a ".repeat(190)}"`)),
  expression(terms("a".repeat(399) + "b")),
  expression(terms([..."abcdefghijklmnop"].map(letter => letter.repeat(20)).join(" "))),
];

// Every block, and the rows that a table reads when they are drawn.
function* drawn(text) {
  for (const block of blocksOf(text)) {
    yield block;
    if (block.kind === "table") yield* block.rows;
  }
}

const RULES = {
  "markdown blocks": text => [...drawn(text)].length,
  "markdown inline": parseInline,
  "visible marks": inert,
  "white space": showWhitespace,
  "first words": firstWords,
  "formula depth": measure,
  "search terms": terms,
  "search marks": text => WANTED.forEach(pattern => [...text.matchAll(pattern)].length),
  JSON: text => parsed(text),
  "JSON depth": nesting,
  pieces: text => [...pieces(text)].length,
};

function milliseconds(rule, text) {
  const started = process.cpuUsage();
  rule(text);
  const used = process.cpuUsage(started);
  return (used.user + used.system) / 1000;
}

const taken = [];

for (const [name, rule] of Object.entries(RULES)) {
  test(`${name}: linear, whatever is repeated`, () => {
    for (const [shape, build] of SHAPES) {
      const text = build(SIGNS);
      const ms = Math.min(milliseconds(rule, text), milliseconds(rule, text));
      taken.push([ms, name, shape]);
      if (ms <= ALLOWED_MS) continue;
      // A slow machine is forgiven, growth beyond the length is not: twice the text, at most three times as long.
      const half = Math.min(...[1, 2, 3].map(() => milliseconds(rule, build(SIGNS / 2))));
      const whole = Math.min(...[1, 2, 3].map(() => milliseconds(rule, text)));
      assert.ok(
        whole < 3 * half,
        `${name} over ${JSON.stringify(shape)}: ${half} ms for half, ${whole} ms for the whole`,
      );
    }
  });
}

test("the worst ten", t => {
  taken.sort((a, b) => b[0] - a[0]);
  for (const [ms, name, shape] of taken.slice(0, 10))
    t.diagnostic(`${ms.toFixed(1).padStart(7)} ms  ${name}: ${JSON.stringify(shape)}`);
  assert.ok(taken.length > 1000);
});

// The page draws between two steps: what one of them takes is what it cannot be stopped in.
test("no step of reading a text takes long", t => {
  const longest = SHAPES.map(([name, shape]) => {
    const steps = drawn(shape(SIGNS));
    let most = 0;
    for (let done = false; !done;)
      most = Math.max(
        most,
        milliseconds(() => {
          done = steps.next().done;
        }, ""),
      );
    return [most, name];
  }).sort((a, b) => b[0] - a[0]);
  for (const [took, name] of longest.slice(0, 5))
    t.diagnostic(`${took.toFixed(1).padStart(7)} ms  a step: ${JSON.stringify(name)}`);
  assert.ok(longest[0][0] <= ALLOWED_MS, String(longest[0]));
});
