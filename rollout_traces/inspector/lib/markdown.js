// Markdown to a plain tree, without HTML: what looks like a tag stays text. `markdown_view.js` draws it.
// Each line is looked at a fixed number of times, by expressions without nested or overlapping repetition.

import { parseInline } from "./markdown_inline.js";

const DEEPEST = 6;
const LONGEST_FORMULA = 5000;
const ITEM = /^([-*+]|\d{1,9}[.)])[ \t]/;
const TABLE_CELL = /^:?-+:?$/;
const TRACEBACK = /^Traceback \(most recent call last\)/;
// Items of one list; those beyond make the next one, which goes on counting as it is written.
const MOST_ITEMS = 500;
const FRAME = /^\s+(?:at |File ")/;

// The blocks one after another, so that a caller may stop between two.
export function* blocksOf(text, depth = 0) {
  const page = new Lines(text.replace(/\r\n?/g, "\n").split("\n"));
  let paragraph = [];
  for (let at = 0; at < page.lines.length; at++) {
    const found = blockAt(page, at, depth);
    if (!found && page.lines[at].trim()) {
      paragraph.push(page.lines[at]);
      continue;
    }
    if (paragraph.length) yield asParagraph(paragraph);
    paragraph = [];
    if (found) {
      yield found.block;
      at = found.last;
    }
  }
  if (paragraph.length) yield asParagraph(paragraph);
}

function asParagraph(lines) {
  return { kind: "paragraph", inline: parseInline(lines.join("\n")) };
}

class Lines {
  constructor(lines) {
    this.lines = lines;
    this.closing = new Map();
  }

  // The first line at or after one that ends with a mark; found for all lines at once.
  endingWith(mark, from) {
    if (!this.closing.has(mark)) {
      const next = new Int32Array(this.lines.length + 1).fill(-1);
      for (let i = this.lines.length - 1; i >= 0; i--)
        next[i] = this.lines[i].trimEnd().endsWith(mark) ? i : next[i + 1];
      this.closing.set(mark, next);
    }
    return this.closing.get(mark)[Math.min(from, this.lines.length)];
  }
}

// A block that begins at a line, with the last line it takes; null for a line of a paragraph.
function blockAt(page, at, depth) {
  const { lines } = page;
  const line = lines[at];
  const indent = indentOf(line);
  const rest = line.slice(indent);
  if (!rest) return null;
  return (
    (indent <= 3 && (fence(lines, at, rest) || heading(rest, at) || rule(rest, at))) ||
    formula(page, at) ||
    traceback(lines, at) ||
    (depth < DEEPEST && ((indent <= 3 && quote(lines, at, depth)) || (ITEM.test(rest) && list(lines, at, depth)))) ||
    table(lines, at)
  );
}

function indentOf(line) {
  let at = 0;
  while (line[at] === " " || line[at] === "\t") at++;
  return at;
}

function runOf(text, sign) {
  let length = 0;
  while (text[length] === sign) length++;
  return length;
}

function fence(lines, first, rest) {
  const sign = rest[0];
  if (sign !== "`" && sign !== "~") return null;
  const length = runOf(rest, sign);
  const info = rest.slice(length);
  if (length < 3 || info.includes("`")) return null;
  const closes = line => {
    const indent = indentOf(line);
    if (indent > 3 || line[indent] !== sign) return false;
    const run = runOf(line.slice(indent), sign);
    return run >= length && !line.slice(indent + run).trim();
  };
  let last = first + 1;
  while (last < lines.length && !closes(lines[last])) last++;
  if (last === lines.length && last === first + 1) return null;
  const language = /^[\w+#.-]*/.exec(info.trimStart())[0];
  return { block: { kind: "code", language, text: lines.slice(first + 1, last).join("\n") }, last };
}

function heading(rest, at) {
  const level = runOf(rest, "#");
  if (!level || level > 6 || (rest[level] !== " " && rest[level] !== "\t")) return null;
  let text = rest.slice(level).trim();
  let stop = text.length;
  while (stop && text[stop - 1] === "#") stop--;
  if (stop < text.length && (!stop || text[stop - 1] === " ")) text = text.slice(0, stop).trimEnd();
  return { block: { kind: "heading", level, inline: parseInline(text) }, last: at };
}

function rule(rest, at) {
  const sign = rest[0];
  if (sign !== "-" && sign !== "*" && sign !== "_") return null;
  let count = 0;
  for (const each of rest) {
    if (each === sign) count++;
    else if (each !== " " && each !== "\t") return null;
  }
  return count >= 3 ? { block: { kind: "rule" }, last: at } : null;
}

function formula(page, at) {
  const { lines } = page;
  const start = lines[at].trim();
  for (const [open, close] of [
    ["$$", "$$"],
    ["\\[", "\\]"],
  ]) {
    if (!start.startsWith(open)) continue;
    const rest = start.slice(open.length);
    if (rest.includes(close)) {
      if (!rest.endsWith(close) || rest.length === close.length || rest.indexOf(close) < rest.length - close.length)
        return null;
      return asFormula(rest.slice(0, -close.length), start, at);
    }
    const last = page.endingWith(close, at + 1);
    if (last < 0 || last - at > 200) return null;
    const body = [rest, ...lines.slice(at + 1, last), lines[last].trimEnd().slice(0, -close.length)];
    return asFormula(body.join("\n"), lines.slice(at, last + 1).join("\n"), last);
  }
  return null;
}

function asFormula(text, source, last) {
  return text.length > LONGEST_FORMULA ? null : { block: { kind: "math", text: text.trim(), source }, last };
}

// What an interpreter prints of an error keeps its columns: Python's from its first line, others' frames.
function traceback(lines, first) {
  const python = TRACEBACK.test(lines[first]);
  if (!python && !(FRAME.test(lines[first]) && FRAME.test(lines[first + 1] || ""))) return null;
  let last = first;
  while (last + 1 < lines.length && /^\s+\S/.test(lines[last + 1])) last++;
  if (python && /^[\w.]+(?::|$)/.test(lines[last + 1] || "")) last++;
  return { block: { kind: "code", language: "traceback", text: lines.slice(first, last + 1).join("\n") }, last };
}

function quote(lines, first, depth) {
  const inside = line => {
    const indent = indentOf(line);
    return indent <= 3 && line[indent] === ">" ? line.slice(indent + (line[indent + 1] === " " ? 2 : 1)) : null;
  };
  if (inside(lines[first]) === null) return null;
  const quoted = [];
  let at = first;
  for (let line; at < lines.length && (line = inside(lines[at])) !== null; at++) quoted.push(line);
  return { block: { kind: "quote", blocks: [...blocksOf(quoted.join("\n"), depth + 1)] }, last: at - 1 };
}

function isTableRule(line) {
  return (
    line.includes("|") &&
    line.includes("-") &&
    line
      .trim()
      .replace(/^\|/, "")
      .replace(/\|$/, "")
      .split("|")
      .every(cell => TABLE_CELL.test(cell.trim()))
  );
}

function cells(line) {
  return line
    .trim()
    .replace(/^\|/, "")
    .replace(/\|$/, "")
    .split("|")
    .map(cell => parseInline(cell.trim()));
}

function table(lines, first) {
  if (!lines[first].includes("|") || !isTableRule(lines[first + 1] || "")) return null;
  let at = first + 2;
  while (at < lines.length && lines[at].includes("|") && lines[at].trim()) at++;
  return {
    block: { kind: "table", head: cells(lines[first]), rows: new Rows(lines.slice(first + 2, at)) },
    last: at - 1,
  };
}

// A table's rows, each read when it is drawn.
class Rows {
  constructor(lines) {
    this.lines = lines;
  }

  *[Symbol.iterator]() {
    for (const line of this.lines) yield cells(line);
  }
}

function itemOf(line) {
  const indent = indentOf(line);
  const mark = ITEM.exec(line.slice(indent))?.[1];
  return mark ? { indent, mark, ordered: mark.length > 1, text: line.slice(indent + mark.length).trimStart() } : null;
}

function list(lines, first, depth) {
  const start = itemOf(lines[first]);
  const { indent, ordered } = start;
  const items = [];
  let body = null;
  let at = first;
  const close = () => {
    if (body) items.push([...blocksOf(body.join("\n"), depth + 1)]);
  };
  for (; at < lines.length; at++) {
    const line = lines[at];
    const item = itemOf(line);
    const inset = indentOf(line);
    if (item && item.indent <= indent + 1) {
      if (item.indent < indent || item.ordered !== ordered || items.length + 1 >= MOST_ITEMS) break;
      close();
      body = [item.text];
    } else if (!line.trim()) {
      const next = lines[at + 1] || "";
      if (!next.trim() || (indentOf(next) <= indent && !itemOf(next))) break;
      body.push("");
    } else if (inset > indent || (body.at(-1) !== "" && !breaksList(line))) {
      body.push(line.slice(Math.min(inset, indent + 2)));
    } else break;
  }
  close();
  return { block: { kind: "list", ordered, start: ordered ? parseInt(start.mark, 10) : 1, items }, last: at - 1 };
}

function breaksList(line) {
  const rest = line.trimStart();
  return /^(?:`{3}|~{3}|#{1,6}\s)/.test(rest);
}
