import assert from "node:assert/strict";
import test from "node:test";
import { DEEPEST, drawable, measure } from "../../../rollout_traces/inspector/lib/formula.js";
import { blocksOf } from "../../../rollout_traces/inspector/lib/markdown.js";
import { parseInline } from "../../../rollout_traces/inspector/lib/markdown_inline.js";

const parseBlocks = text => [...blocksOf(text)];
const kinds = text => parseBlocks(text).map(block => block.kind);
const texts = nodes => nodes.map(node => node.kind + ":" + (node.text ?? texts(node.inline)));

test("blocks of every kind are told apart", () => {
  assert.deepEqual(kinds("# a\n\nb\n\n- c\n\n1. d\n\n> e\n\n```py\nf\n```\n\n---\n\n|a|b|\n|-|-|\n|1|2|"), [
    "heading",
    "paragraph",
    "list",
    "list",
    "quote",
    "code",
    "rule",
    "table",
  ]);
});

test("markup of other languages stays text", () => {
  assert.deepEqual(parseInline("<b>x</b> & <script>"), [{ kind: "text", text: "<b>x</b> & <script>" }]);
});

test("formulas are found and prices are not", () => {
  assert.deepEqual(texts(parseInline("so $x^2$ and \\(y\\) cost $5 and $6")), [
    "text:so ",
    "math:x^2",
    "text: and ",
    "math:y",
    "text: cost $5 and $6",
  ]);
  assert.deepEqual(kinds("$$\na\n$$"), ["math"]);
  assert.deepEqual(kinds("\\[ a \\]"), ["math"]);
});

test("an unclosed fence takes the rest as code", () => {
  assert.deepEqual(parseBlocks("```\na\n# b"), [{ kind: "code", language: "", text: "a\n# b" }]);
});

test("nested lists keep their depth", () => {
  const [list] = parseBlocks("- a\n  - b\n- c");
  assert.equal(list.items.length, 2);
  assert.equal(list.items[0][1].kind, "list");
});

test("code spans end at a run of equal length", () => {
  assert.deepEqual(texts(parseInline("a `b` ``c`d`` `e")), ["text:a ", "code:b", "text: ", "code:c`d", "text: `e"]);
});

test("emphasis nests, and names with underscores are left alone", () => {
  assert.deepEqual(texts(parseInline("**a *b* c** snake_case_name _d_ ~~e~~")), [
    "strong:text:a ,em:text:b,text: c",
    "text: snake_case_name ",
    "em:text:d",
    "text: ",
    "strike:text:e",
  ]);
});

test("a fence that opens at the end hides nothing", () => {
  assert.deepEqual(parseBlocks("a\n`````"), [{ kind: "paragraph", inline: [{ kind: "text", text: "a\n`````" }] }]);
});

test("links show their address, escapes their sign", () => {
  assert.deepEqual(parseInline('[a](http://b "c") ![d](e) \\*f\\*'), [
    { kind: "link", text: "a", address: "http://b" },
    { kind: "text", text: " " },
    { kind: "link", text: "d", address: "e" },
    { kind: "text", text: " *f*" },
  ]);
});

test("a formula keeps how it was written", () => {
  assert.deepEqual(parseInline("\\(x\\)"), [{ kind: "math", text: "x", source: "\\(x\\)", display: false }]);
  assert.equal(parseBlocks("\\[\nx\n\\]")[0].source, "\\[\nx\n\\]");
});

test("a rule looks no further than its cap", () => {
  for (const text of [
    "`" + "a".repeat(3000) + "`",
    "$" + "a".repeat(5000) + "$",
    "**" + "a".repeat(5000) + "**",
    "[a](" + "b".repeat(3000) + ")",
  ])
    assert.deepEqual(parseInline(text), [{ kind: "text", text }]);
});

test("tracebacks keep their columns", () => {
  const trace =
    'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    1 / 0\n    ~~^~~\nZeroDivisionError: division by zero';
  assert.deepEqual(parseBlocks(`It failed.\n${trace}\nSo I try again.`), [
    { kind: "paragraph", inline: [{ kind: "text", text: "It failed." }] },
    { kind: "code", language: "traceback", text: trace },
    { kind: "paragraph", inline: [{ kind: "text", text: "So I try again." }] },
  ]);
});

test("the depth of a formula counts braces and commands that take an argument", () => {
  assert.equal(measure("x + y").deepest, 0);
  assert.equal(measure("\\frac{a}{\\sqrt{b}}").deepest, 3);
  assert.equal(measure("\\alpha\\beta\\gamma\\delta").deepest, 0);
  for (const [open, close] of [
    ["{", "}"],
    ["\\sqrt{", "}"],
    ["\\frac", ""],
    ["x^{", "}"],
    ["\\left(", "\\right)"],
    ["\\begin{a}", "\\end{a}"],
  ]) {
    assert.ok(drawable(open.repeat(8) + " x" + close.repeat(8)), open);
    assert.ok(!drawable(open.repeat(DEEPEST + 1) + " x" + close.repeat(DEEPEST + 1)), open);
  }
});

test("a long list is several, which go on counting", () => {
  const lists = parseBlocks(Array.from({ length: 1200 }, (_, at) => `${at + 1}. a`).join("\n"));
  assert.deepEqual(
    lists.map(list => [list.start, list.items.length]),
    [
      [1, 500],
      [501, 500],
      [1001, 200],
    ],
  );
});

test("a table's rows are read as they are drawn, as often as they are", () => {
  const [table] = parseBlocks("a|b\n-|-\n1|2\n3|4\n\nend");
  assert.equal([...table.rows].length, 2);
  assert.deepEqual([...table.rows][1].map(texts), [["text:3"], ["text:4"]]);
});
