// Hostile text made visible: control, bidi, zero-width and tag characters are drawn as marks instead of acting.

// A list of names, written as one text.
export const words = text => text.trim().split(/\s+/);

// A column in words; a name in quotes is left as it was logged.
export const spoken = signal => signal.replace(/“[^”]*”|_/g, found => (found === "_" ? " " : found));

const NAMES = {
  0x00ad: "SHY",
  0x061c: "ALM",
  0x200b: "ZWSP",
  0x200e: "LRM",
  0x200f: "RLM",
  0x202a: "LRE",
  0x202b: "RLE",
  0x202c: "PDF",
  0x202d: "LRO",
  0x202e: "RLO",
  0x2028: "LS",
  0x2029: "PS",
  0x2060: "WJ",
  0x2066: "LRI",
  0x2067: "RLI",
  0x2068: "FSI",
  0x2069: "PDI",
  0xfeff: "BOM",
};
const ACTING =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff]/g;
// Tag characters spell ASCII that nobody sees; selectors in a row can spell bytes.
const TAGS = /[\u{e0000}-\u{e007f}]+/gu;
const SELECTORS = /[\ufe00-\ufe0f\u{e0100}-\u{e01ef}]{2,}/gu;
const UNSEEN = /[\u{fe00}-\u{fe0f}\u{e0000}-\u{e01ef}]/u;
const NOT_PLAIN = /[^\t\n\x20-\x7e]/;
// No script stacks more marks on a letter; a thousand of them take seconds to lay out.
const MOST_MARKS = 8;
const STACKED = /\p{M}{9,}/gu;

function mark(char) {
  const code = char.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return NAMES[code] ? `\u27e8${NAMES[code]}\u27e9` : `\u27e8${code.toString(16).toUpperCase()}\u27e9`;
}

function tagMark(run) {
  const spelled = Array.from(run, char => {
    const code = char.codePointAt(0) - 0xe0000;
    return code >= 0x20 && code < 0x7f
      ? String.fromCharCode(code)
      : code === 0x7f
        ? "\u2421"
        : `U+${char.codePointAt(0).toString(16).toUpperCase()}`;
  });
  return `\u27e8TAG ${spelled.join("")}\u27e9`;
}

function selectorMark(run) {
  return `\u27e8${Array.from(run).length} VS\u27e9`;
}

function stackMark(run) {
  const marks = Array.from(run);
  return `${marks.slice(0, MOST_MARKS).join("")}\u27e8+${marks.length - MOST_MARKS} marks\u27e9`;
}

function marked(text) {
  if (!NOT_PLAIN.test(text)) return text;
  let seen = text.replace(ACTING, mark);
  if (UNSEEN.test(seen)) seen = seen.replace(TAGS, tagMark).replace(SELECTORS, selectorMark);
  return seen.replace(STACKED, stackMark);
}

export function inert(text) {
  return marked(text.replace(/\r\n/g, "\n"));
}

// Whitespace as marks too; a newline keeps breaking the line.
export function showWhitespace(text) {
  return marked(text.replace(/\r/g, "\u240d"))
    .replace(/ /g, "\u00b7")
    .replace(/\t/g, "\u2192\t")
    .replace(/\n/g, "\u21b5\n")
    .replace(/\u00a0/g, "\u27e8NBSP\u27e9")
    .replace(/\u200c/g, "\u27e8ZWNJ\u27e9")
    .replace(/\u200d/g, "\u27e8ZWJ\u27e9");
}

export function firstWords(text, length = 140) {
  const flat = inert(text.slice(0, length * 4))
    .replace(/\s+/g, " ")
    .trim();
  return flat.length > length ? flat.slice(0, length - 1) + "\u2026" : flat;
}
