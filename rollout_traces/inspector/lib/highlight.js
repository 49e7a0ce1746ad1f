// What was searched for, marked in the conversation without touching its elements, also across tokens.

const MOST = 500;
const MOST_TERMS = 16;
const LONGEST_QUERY = 400;
const LONGEST_TEXT = 2_000_000;
const SETTLED = 120;
const BEFORE = 24;
const BLOCK = ".rt-tokens, .rt-plain, p, li, pre, td, th, h3, h4, h5, h6";
const SPACE = "[\\s\u00b7\u21b5]+";
const SPACES = /[\s\u00b7\u21b5]+/;

export function terms(text) {
  const found = [...text.slice(0, LONGEST_QUERY).matchAll(/"([^"]+)"|(\S+)/g)].map(match =>
    (match[1] || match[2]).replace(/^"/, "").trim(),
  );
  return found.filter(term => term.length > 1 || term > "\u2e80").slice(0, MOST_TERMS);
}

// One expression for all terms; white space in a phrase stands for any, also for its marks. Words hold none of
// it, so there is one way to match a text, and its length is bounded by the query's.
export function expression(wanted) {
  const escaped = term =>
    term
      .split(SPACES)
      .filter(Boolean)
      .map(word => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"))
      .join(SPACE);
  const patterns = [...wanted]
    .sort((a, b) => b.length - a.length)
    .map(escaped)
    .filter(Boolean);
  return new RegExp(patterns.join("|") || "(?!)", "gi");
}

// A snippet as [before, hit, between, hit, ..., after], the first hit in sight of a narrow card; null where nothing
// that was searched for is in it.
export function aroundHits(snippet, text) {
  const hits = text ? [...snippet.matchAll(expression(terms(text)))].filter(match => match[0]) : [];
  if (!hits.length) return null;
  const before = snippet.slice(0, hits[0].index);
  const pieces = [before.length > BEFORE ? `\u2026 ${before.slice(-BEFORE).replace(/^\S*\s+/, "")}` : before];
  hits.forEach((match, at) => {
    const stop = hits[at + 1]?.index ?? snippet.length;
    pieces.push(match[0], snippet.slice(match.index + match[0].length, stop));
  });
  return pieces;
}

// A phrase of the analysis: its words in this order, whatever stands between them that is neither letter nor digit.
export function phraseExpression(phrase) {
  const words = phrase.slice(0, LONGEST_QUERY).match(/[\p{L}\p{N}]+(?:['’][\p{L}\p{N}]+)?/gu) || [];
  if (!words.length) return /(?!)/gu;
  return new RegExp(`(?<![\\p{L}\\p{N}])${words.join("[^\\p{L}\\p{N}\\u0000]{1,12}")}(?![\\p{L}\\p{N}])`, "giu");
}

export class Marks {
  // Marks stay right while the conversation is drawn anew: turns opened, tokens come near the view.
  constructor(root) {
    this.root = root;
    this.wanted = [];
    this.ranges = [];
    this.at = -1;
    this.observer = new MutationObserver(() => this.later());
  }

  // text: what was searched for; phrase: one that the analysis found.
  set(text, phrase = "") {
    const can = typeof CSS !== "undefined" && CSS.highlights;
    this.wanted = [
      can && text ? expression(terms(text)) : null,
      can && phrase ? phraseExpression(phrase) : null,
    ].filter(Boolean);
    this.at = -1;
    this.observer.disconnect();
    if (this.wanted.length) this.observer.observe(this.root, { childList: true, subtree: true });
    this.draw();
  }

  // Once for a conversation that is being drawn in slices, not once a slice.
  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.draw(), SETTLED);
  }

  draw() {
    this.ranges = this.wanted.flatMap(wanted => found(this.root, wanted));
    if (typeof CSS === "undefined" || !CSS.highlights) return;
    if (this.ranges.length) CSS.highlights.set("rt-found", new Highlight(...this.ranges));
    else CSS.highlights.delete("rt-found");
  }

  // Scrolls to the next or previous place; says which of how many.
  step(by) {
    const n = this.ranges.length;
    if (!n) return;
    this.at = this.at < 0 ? (by > 0 ? 0 : n - 1) : (this.at + by + n) % n;
    this.ranges[this.at].startContainer.parentElement.scrollIntoView({ block: "center" });
  }

  forget() {
    clearTimeout(this.timer);
    this.set("");
  }
}

function found(root, wanted) {
  const { nodes, starts, text } = joined(root);
  const ranges = [];
  for (const match of text.matchAll(wanted)) {
    if (ranges.length === MOST) break;
    const range = new Range();
    const stop = match.index + match[0].length;
    const [first, last] = [nodeAt(starts, match.index), nodeAt(starts, stop - 1)];
    range.setStart(nodes[first], match.index - starts[first]);
    range.setEnd(nodes[last], stop - starts[last]);
    ranges.push(range);
  }
  return ranges;
}

// The text nodes under an element as one text; what stands in different blocks is kept apart.
function joined(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const nodes = [];
  const starts = [];
  const parts = [];
  let at = 0;
  let block = null;
  while (at < LONGEST_TEXT && walker.nextNode()) {
    const node = walker.currentNode;
    const inside = node.parentElement.closest(BLOCK);
    if (!inside) continue;
    if (inside !== block) {
      parts.push("\u0000");
      at += 1;
      block = inside;
    }
    nodes.push(node);
    starts.push(at);
    parts.push(node.data);
    at += node.data.length;
  }
  return { nodes, starts, text: parts.join("") };
}

function nodeAt(starts, offset) {
  let [low, high] = [0, starts.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= offset) low = middle;
    else high = middle - 1;
  }
  return low;
}
