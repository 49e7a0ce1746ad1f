// Inline markdown to a plain tree in one pass. No rule looks further than its cap, and no search for a closing
// mark starts twice from the same place, so time is linear in the text whatever it repeats.

const MOST = { code: 2000, math: 4000, strong: 4000, em: 1000, strike: 1000, label: 500, address: 2000, title: 500 };
const DEEPEST = 6;
const SPECIAL = /[`$\\*_~![]/g;
const SPACE = /\s/;
const WORD = /[\p{L}\p{N}]/u;
const PUNCTUATION = /[\\`*_{}[\]()#+.!$~>|-]/;
const FORMULA_SIGN = /[\\^_=+*/<>{-]/;

// Where the next match of a sticky-free global expression begins, remembered: questions may only move forward
// by little, so each expression walks the text once.
function finder(text, pattern) {
  let found = -1;
  return from => {
    if (found < from) {
      pattern.lastIndex = from;
      found = pattern.exec(text)?.index ?? Infinity;
    }
    return found;
  };
}

// The next closing mark whose character before it is no white space.
function closer(text, mark) {
  let found = -1;
  return from => {
    if (found >= from) return found;
    found = text.indexOf(mark, from);
    while (found > 0 && SPACE.test(text[found - 1])) found = text.indexOf(mark, found + 1);
    if (found < 0) found = Infinity;
    return found;
  };
}

// The next dollar that no backslash escapes.
function dollar(text) {
  let found = -1;
  return from => {
    if (found >= from) return found;
    for (found = text.indexOf("$", from); found >= 0; found = text.indexOf("$", found + 1)) {
      let slashes = 0;
      while (text[found - 1 - slashes] === "\\") slashes++;
      if (slashes % 2 === 0) return found;
    }
    return (found = Infinity);
  };
}

// Runs of backticks by length: a code span ends at the next run as long as the one that opened it.
function ticks(text) {
  const byLength = new Map();
  for (const match of text.matchAll(/`+/g)) {
    const length = match[0].length;
    if (!byLength.has(length)) byLength.set(length, { starts: [], next: 0 });
    byLength.get(length).starts.push(match.index);
  }
  return (length, from) => {
    const runs = byLength.get(length);
    if (!runs) return Infinity;
    while (runs.next < runs.starts.length && runs.starts[runs.next] < from) runs.next++;
    return runs.starts[runs.next] ?? Infinity;
  };
}

class Inline {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.special = finder(text, new RegExp(SPECIAL));
    this.newline = finder(text, /\n/g);
    this.star = finder(text, /\*/g);
    this.line = finder(text, /_/g);
    this.tilde = finder(text, /~/g);
    this.bracket = finder(text, /\]/g);
    this.addressEnd = finder(text, /[()\s]/g);
    this.quote = finder(text, /"/g);
    this.displayEnd = finder(text, /\\\]/g);
    this.inlineEnd = finder(text, /\\\)/g);
    this.dollar = dollar(text);
    this.strongEnds = { "*": closer(text, "**"), _: closer(text, "__") };
  }

  ticks(length, from) {
    this.ticksFrom ??= ticks(this.text);
    return this.ticksFrom(length, from);
  }

  // [node, where it ends], or null: the sign at this place is nothing but itself.
  at(start) {
    const { text } = this;
    switch (text[start]) {
      case "`":
        return this.code(start);
      case "$":
        return this.dollars(start);
      case "\\":
        return this.bracketed(start);
      case "*":
        return this.strong(start, "*") || this.emphasis(start, "*", this.star);
      case "_":
        return this.strong(start, "_") || this.emphasis(start, "_", this.line);
      case "~":
        return this.strike(start);
      case "!":
        return text[start + 1] === "[" ? this.link(start, start + 1) : null;
      default:
        return this.link(start, start);
    }
  }

  inner(start, stop) {
    return parseInline(this.text.slice(start, stop), this.depth + 1);
  }

  formula(start, from, to, end, display) {
    return [{ kind: "math", text: this.text.slice(from, to), source: this.text.slice(start, end), display }, end];
  }

  code(start) {
    const { text } = this;
    let from = start;
    while (text[from] === "`") from++;
    const stop = this.ticks(from - start, from);
    if (stop - from > MOST.code) return [{ kind: "text", text: text.slice(start, from) }, from];
    let inside = text.slice(from, stop);
    if (inside.length > 2 && inside[0] === " " && inside.at(-1) === " ") inside = inside.slice(1, -1);
    return [{ kind: "code", text: inside }, stop + from - start];
  }

  dollars(start) {
    const { text } = this;
    if (text[start + 1] === "$") {
      const stop = this.dollar(start + 2);
      if (text[stop + 1] !== "$" || stop === start + 2 || stop - start > MOST.math) return null;
      return this.formula(start, start + 2, stop, stop + 2, true);
    }
    const stop = this.dollar(start + 1);
    if (stop - start > MOST.math || stop === start + 1 || this.newline(start) < stop) return null;
    if (SPACE.test(text[stop - 1]) || isDigit(text[stop + 1]) || !this.opensFormula(start + 1, stop)) return null;
    return this.formula(start, start + 1, stop, stop + 1, false);
  }

  // A price is no formula: what begins with a figure has to hold a sign of a formula.
  opensFormula(from, stop) {
    const { text } = this;
    let at = from;
    while (at < stop && /[.,)]/.test(text[at])) at++;
    if (SPACE.test(text[at])) return false;
    return !isDigit(text[at]) || (at === from && stop - from <= 800 && FORMULA_SIGN.test(text.slice(from, stop)));
  }

  bracketed(start) {
    const display = this.text[start + 1] === "[";
    if (!display && this.text[start + 1] !== "(") return null;
    const stop = (display ? this.displayEnd : this.inlineEnd)(start + 2);
    if (stop === start + 2 || stop - start > MOST.math) return null;
    return this.formula(start, start + 2, stop, stop + 2, display);
  }

  strong(start, mark) {
    const { text } = this;
    const from = start + 2;
    if (text[start + 1] !== mark || from >= text.length || SPACE.test(text[from])) return null;
    const stop = this.strongEnds[mark](from + 1);
    return stop - from > MOST.strong ? null : [{ kind: "strong", inline: this.inner(from, stop) }, stop + 2];
  }

  emphasis(start, mark, next) {
    const { text } = this;
    if (mark === "_" && WORD.test(text[start - 1] || "")) return null;
    const stop = next(start + 1);
    if (stop === start + 1 || stop - start > MOST.em || this.newline(start) < stop) return null;
    if (SPACE.test(text[start + 1]) || SPACE.test(text[stop - 1])) return null;
    if (mark === "*" ? text[stop + 1] === "*" : WORD.test(text[stop + 1] || "") || text[stop + 1] === "_") return null;
    return [{ kind: "em", inline: this.inner(start + 1, stop) }, stop + 1];
  }

  strike(start) {
    const { text } = this;
    if (text[start + 1] !== "~" || SPACE.test(text[start + 2] || " ")) return null;
    const stop = this.tilde(start + 2);
    if (
      text[stop + 1] !== "~" ||
      stop === start + 2 ||
      stop - start > MOST.strike ||
      this.newline(start) < stop ||
      SPACE.test(text[stop - 1])
    )
      return null;
    return [{ kind: "strike", inline: this.inner(start + 2, stop) }, stop + 2];
  }

  link(start, open) {
    const { text } = this;
    const label = this.bracket(open + 1);
    if (label - open > MOST.label || text[label + 1] !== "(" || this.newline(open) < label) return null;
    let end = this.addressEnd(label + 2);
    if (end === label + 2 || end - label > MOST.address) return null;
    const address = text.slice(label + 2, end);
    if (text[end] === " " && text[end + 1] === '"') {
      const quote = this.quote(end + 2);
      if (quote - end > MOST.title) return null;
      end = quote + 1;
    }
    return text[end] === ")" ? [{ kind: "link", text: text.slice(open + 1, label), address }, end + 1] : null;
  }
}

function isDigit(sign) {
  return sign >= "0" && sign <= "9";
}

// Nodes {kind: text | code | math | strong | em | strike | link, ...}.
export function parseInline(text, depth = 0) {
  if (depth > DEEPEST) return [{ kind: "text", text }];
  const rules = new Inline(text, depth);
  const nodes = [];
  let plain = [];
  const flush = () => {
    if (plain.length) nodes.push({ kind: "text", text: plain.join("") });
    plain = [];
  };
  for (let at = 0; at < text.length;) {
    const found = Math.min(rules.special(at), text.length);
    if (found > at) plain.push(text.slice(at, found));
    if (found === text.length) break;
    const match = rules.at(found);
    if (match && match[0].kind === "text") {
      plain.push(match[0].text);
      at = match[1];
    } else if (match) {
      flush();
      nodes.push(match[0]);
      at = match[1];
    } else {
      const escapes = text[found] === "\\" && PUNCTUATION.test(text[found + 1] || "");
      plain.push(text[found + (escapes ? 1 : 0)]);
      at = found + (escapes ? 2 : 1);
    }
  }
  flush();
  return nodes;
}
