// Drawing the markdown tree, in slices. Links and images do not act: they show where they point.

import { button, h } from "./dom.js";
import { draw, formula, loadKatex } from "./formula.js";
import { number } from "./format.js";
import { blocksOf } from "./markdown.js";
import { slices } from "./slices.js";
import { inert } from "./text.js";

// Signs of one box: the browser lays a box out as a whole, in time that grows faster than its text.
const PIECE = 2000;
// Inline nodes between two looks at the clock, and blocks that share a box.
const NODES = 60;
const BLOCKS = 40;

// A part of the text that is laid out by itself, and only near the view.
function box(...children) {
  return h("span.rt-box", { dir: "auto" }, children);
}

// A part that ends within a line, which the text does not: a sign says that the line goes on.
function unended(...children) {
  return h("span.rt-box.rt-goes-on", { dir: "auto" }, children);
}

// The parts of a text, each in its box.
function* boxes(text) {
  let stop = 0;
  for (const piece of pieces(text)) {
    stop += piece.length;
    yield (stop < text.length && !piece.endsWith("\n") ? unended : box)(inert(trimmed(piece)));
  }
}

function inline(nodes, formulas) {
  return nodes.map(node => {
    switch (node.kind) {
      case "text":
        return inert(node.text);
      case "code":
        return h("code", inert(node.text));
      case "math":
        return noted(formula(node), formulas);
      case "strong":
        return h("strong", inline(node.inline, formulas));
      case "em":
        return h("em", inline(node.inline, formulas));
      case "strike":
        return h("s", inline(node.inline, formulas));
      default:
        return h(
          "span.rt-link",
          { title: "Links from rollouts do not open" },
          inert(node.text),
          h("span.rt-link-to", inert(node.address)),
        );
    }
  });
}

function noted(node, formulas) {
  formulas.push(node);
  return node;
}

// Appends a block to its parent piece by piece.
function* append(parent, node, formulas) {
  switch (node.kind) {
    case "paragraph":
      return yield* fill(parent, h("p", { dir: "auto" }), node.inline, formulas);
    case "heading":
      return yield* fill(parent, h(`h${Math.min(node.level + 2, 6)}`, { dir: "auto" }), node.inline, formulas);
    case "rule":
      return void parent.append(h("hr"));
    case "code":
      return yield* code(parent, node);
    case "math":
      return void parent.append(noted(formula({ ...node, display: true }), formulas));
    case "quote":
      return yield* appendAll(attach(parent, h("blockquote", { dir: "auto" })), node.blocks, formulas);
    case "list": {
      const list = attach(
        parent,
        h(node.ordered ? "ol" : "ul", node.ordered ? { start: node.start, dir: "auto" } : { dir: "auto" }),
      );
      for (const item of node.items) yield* appendAll(attach(list, h("li", { dir: "auto" })), item, formulas);
      return undefined;
    }
    default:
      return yield* table(parent, node, formulas);
  }
}

function attach(parent, node) {
  parent.append(node);
  return node;
}

function* appendAll(parent, blocks, formulas) {
  for (const block of blocks) {
    yield* append(parent, block, formulas);
    yield;
  }
}

// A block too long for one box is cut into several, at a line's or a word's end where one is near.
function* fill(parent, block, nodes, formulas) {
  attach(parent, block);
  const short = size(nodes) <= 2 * PIECE;
  if (short && nodes.length <= NODES) return void block.append(...inline(nodes, formulas));
  let open = [];
  let length = 0;
  for (const node of short ? nodes : nodes.flatMap(cut)) {
    open.push(node);
    length += size([node]);
    if (short ? open.length < NODES : length < PIECE && open.length < 2 * NODES) continue;
    block.append(short ? h("span", inline(open, formulas)) : unended(inline(open, formulas)));
    [open, length] = [[], 0];
    yield;
  }
  return void block.append(short ? h("span", inline(open, formulas)) : box(inline(open, formulas)));
}

function size(nodes) {
  return nodes.reduce((sum, node) => sum + (node.text?.length ?? size(node.inline)), 0);
}

function cut(node) {
  return node.kind === "text" && node.text.length > PIECE
    ? [...pieces(node.text)].map(text => ({ kind: "text", text }))
    : [node];
}

function* code(parent, node) {
  const inner = h("code", { dir: "auto" });
  attach(parent, h("pre.rt-code", { tabindex: "0", dataset: { language: node.language || "" } }, inner));
  if (node.text.length <= PIECE) return void inner.append(inert(node.text));
  for (const part of boxes(node.text)) {
    inner.append(part);
    yield;
  }
  return undefined;
}

function* table(parent, node, formulas) {
  const body = h("tbody");
  const cellsOf = (tag, cells) => h.each("tr", cells, cell => h(tag, { dir: "auto" }, inline(cell, formulas)));
  attach(parent, h("div.rt-table-scroll", { tabindex: "0" }, h("table", h("thead", cellsOf("th", node.head)), body)));
  yield;
  for (const row of node.rows) {
    body.append(cellsOf("td", row));
    yield;
  }
}

// A text in parts that end at a line, or else a word, where one ends near.
export function* pieces(text, length = PIECE) {
  for (let at = 0; at < text.length;) {
    let stop = at + length;
    const line = text.lastIndexOf("\n", stop - 1) + 1;
    const word = text.lastIndexOf(" ", stop - 1) + 1;
    if (stop < text.length) stop = [line, word].find(place => place > at + length / 2) ?? stop;
    if ((text.charCodeAt(stop) & 0xfc00) === 0xdc00) stop++;
    yield text.slice(at, stop);
    at = stop;
  }
}

// The box breaks the line already.
function trimmed(piece) {
  return piece.length > 1 && piece.endsWith("\n") ? piece.slice(0, -1) : piece;
}

export function plain(text) {
  return h("div.rt-plain", { dir: "auto" }, text.length <= PIECE ? inert(text) : [...boxes(text)]);
}

// The blocks of a text, then the formulas in them once KaTeX is there. What takes too long stays as written,
// with a button that draws it all the same.
export function markdown(text) {
  const root = h("div.rt-markdown");
  drawBlocks(root, text, { late: () => asPlain(root, text) });
  return root;
}

function drawBlocks(root, text, options) {
  const formulas = [];
  let seen = false;
  const wanted = () => {
    seen ||= root.isConnected;
    return root.isConnected || !seen;
  };
  slices.run(
    blocks(root, text, formulas, () => drawFormulas(root, formulas, options.whole)),
    { ...options, wanted },
  );
}

function* blocks(root, text, formulas, then) {
  let parent = root;
  let count = 0;
  for (const block of blocksOf(text)) {
    if (++count % BLOCKS === 0) parent = attach(root, h("div.rt-box"));
    yield* append(parent, block, formulas);
    yield;
  }
  if (formulas.length) then();
}

async function drawFormulas(root, formulas, whole) {
  if (await loadKatex())
    slices.run(drawAll(formulas), { whole, wanted: () => root.isConnected, late: () => leftOver(root, formulas) });
}

function* drawAll(formulas) {
  while (formulas.length) {
    draw(formulas.shift());
    yield;
  }
}

function lateButton(label, draw) {
  const node = button(
    label,
    () => {
      node.remove();
      draw();
    },
    { class: "rt-button rt-late", testid: "draw-anyway" },
  );
  return node;
}

function asPlain(root, text) {
  root.replaceChildren(
    lateButton("Takes too long to draw, so it is plain text. Draw it all the same", () => {
      root.replaceChildren();
      drawBlocks(root, text, { whole: Infinity });
    }),
    plain(text),
  );
}

function leftOver(root, formulas) {
  root.prepend(
    lateButton(`${number(formulas.length)} more formulas are shown as written. Draw them all the same`, () =>
      drawFormulas(root, formulas, Infinity),
    ),
  );
}
