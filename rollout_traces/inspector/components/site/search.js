// Words and phrases in conversations, found as the store's full-text index finds them.

const SIGNS = "{}[]()<>=+*/\\_^$#@|&%~`";
const CJK =
  "\u2e80-\u2fff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\u{20000}-\u{3134f}";
const WORD = new RegExp(
  `[${CJK}]|[${SIGNS.replace(/[\\\]^[\-]/g, "\\$&")}]|(?:(?![${CJK}])[\\p{L}\\p{N}\\p{Co}])+`,
  "gu",
);
const AROUND = 60;

// A text as its words with a blank around each: case, accents and other marks make no difference.
export function words(text) {
  const plain = text.normalize("NFD").replace(/\p{M}/gu, "").normalize("NFC").toLowerCase();
  return ` ${(plain.match(WORD) || []).join(" ")} `;
}

// A phrase with signs that ends inside a word goes on from there: `boxed{4` finds `boxed{42}`.
export function phraseOf(text) {
  const looked = words(text);
  if (!looked.trim()) return { piece: text.toLowerCase() };
  const goesOn = [...SIGNS].some(sign => text.includes(sign)) && /[\p{L}\p{N}]$/u.test(text);
  return { words: goesOn ? looked.trimEnd() : looked };
}

export function occurs(phrase, texts, row) {
  return phrase.words === undefined
    ? texts.text(row).toLowerCase().includes(phrase.piece)
    : texts.words(row).includes(phrase.words);
}

// What a search box holds: words and "quoted phrases".
export function phrases(typed) {
  const found = [...typed.matchAll(/"([^"]*)"?|(\S+)/g)].map(match => (match[1] ?? match[2]).trim()).filter(Boolean);
  return [...new Set(found)];
}

// The surroundings of the first piece that is found in a text, on one line. looked: what gives a piece for the text.
export function snippet(text, looked) {
  for (const pieceOf of looked) {
    const phrase = pieceOf(text).trim();
    if (!phrase) continue;
    const pattern = phrase
      .split(/\s+/)
      .map(word => word.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&"))
      .join("\\s+");
    const found = new RegExp(pattern, "iu").exec(text);
    if (!found) continue;
    const [start, stop] = [Math.max(0, found.index - AROUND), found.index + found[0].length + AROUND];
    return `${start ? "… " : ""}${text.slice(start, stop).replace(/\s+/g, " ").trim()}${stop < text.length ? " …" : ""}`;
  }
  return text
    .slice(0, 2 * AROUND)
    .replace(/\s+/g, " ")
    .trim();
}
