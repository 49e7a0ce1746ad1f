// The tokens of a turn as text with exact edges. Chunks are one text node until they come near the view;
// then they become one element a token. Layout is the same before and after, so nothing jumps. A turn
// far from the view is not laid out at all.

import { escapeHtml, h } from "../../lib/dom.js";
import { inert, showWhitespace } from "../../lib/text.js";

const CHUNK = 256;
const LINE_PX = 23;
const NEAR_PX = 900;
const NEAR = `${NEAR_PX}px 0px`;
// Tokens that are elements from the start: what is seen first is painted once, with its overlay.
const SEEN_FIRST = 1024;

const afterPaint = work => requestAnimationFrame(() => setTimeout(work));

export class TokenText {
  // look: {painted, flagged: Uint8Array (0, or 1 + severity), whitespace, divergence: first token that differs}
  constructor(tokens, scroller) {
    this.tokens = tokens;
    this.look = { painted: null, flagged: null, whitespace: false };
    this.startOver();
    this.observer = new IntersectionObserver(entries => this.arrived(entries), { root: scroller, rootMargin: NEAR });
    this.nearObserver = new IntersectionObserver(
      entries => {
        for (const entry of entries) entry.target.classList.toggle("rt-near", entry.isIntersecting);
      },
      { root: scroller, rootMargin: NEAR },
    );
  }

  // Chunks that came near the view: those in sight now, the others once the page has been painted.
  arrived(entries) {
    const near = [];
    for (const { isIntersecting, target, boundingClientRect: box, rootBounds } of entries) {
      if (!isIntersecting) continue;
      const inSight = !rootBounds || (box.top < rootBounds.bottom - NEAR_PX && box.bottom > rootBounds.top + NEAR_PX);
      if (inSight) this.upgrade(target);
      else near.push(target);
    }
    if (near.length) afterPaint(() => near.forEach(chunk => this.upgrade(chunk)));
  }

  // Other nodes will be made.
  startOver() {
    this.chunks = [];
    this.first = SEEN_FIRST;
  }

  // A node for tokens [start, stop).
  range(start, stop) {
    const node = h("div", { class: this.first > 0 ? "rt-tokens rt-near" : "rt-tokens", dir: "auto" });
    for (let at = start; at < stop; at += CHUNK) {
      const chunk = h("span.rt-chunk");
      chunk.rtRange = [at, Math.min(at + CHUNK, stop)];
      if (this.first > 0) this.upgrade(chunk);
      else this.downgrade(chunk);
      this.first -= CHUNK;
      this.chunks.push(chunk);
      this.observer.observe(chunk);
      node.append(chunk);
    }
    node.style.containIntrinsicSize = `auto ${LINE_PX * this.lines(start, stop)}px`;
    this.nearObserver.observe(node);
    return node;
  }

  lines(start, stop) {
    const { starts, stops } = this.tokens.arrays;
    return start < stop ? this.tokens.raw.slice(starts[start], stops[stop - 1]).split("\n").length : 1;
  }

  forget() {
    this.observer.disconnect();
    this.nearObserver.disconnect();
    this.startOver();
  }

  glyphs(text) {
    return this.look.whitespace ? showWhitespace(text) : inert(text);
  }

  downgrade(chunk) {
    const [start, stop] = chunk.rtRange;
    const { starts, stops } = this.tokens.arrays;
    chunk.rtDrawn = false;
    chunk.textContent = start < stop ? this.glyphs(this.tokens.raw.slice(starts[start], stops[stop - 1])) : "";
  }

  upgrade(chunk) {
    if (chunk.rtDrawn) return;
    chunk.rtDrawn = true;
    const { starts, stops, special } = this.tokens.arrays;
    const { painted, flagged, divergence, whitespace } = this.look;
    const raw = this.tokens.raw;
    const parts = [];
    for (let i = chunk.rtRange[0]; i < chunk.rtRange[1]; i++) {
      const text = raw.slice(starts[i], stops[i]);
      let cls = painted ? painted.classOf(i) : "";
      if (special[i]) cls += " sp";
      if (!text) cls += " vo";
      else if (!whitespace && text.charCodeAt(0) === 10) cls += " nl";
      if (divergence !== undefined && i <= divergence) cls += i < divergence ? " sh" : " dv";
      if (flagged && flagged[i]) cls += " fl f" + flagged[i];
      parts.push(
        '<i data-testid="token" data-i="',
        i,
        cls ? `" class="${cls}">` : '">',
        escapeHtml(this.glyphs(text)),
        "</i>",
      );
    }
    chunk.innerHTML = parts.join("");
  }

  // A new overlay or other marks: what is near the view is redrawn, the rest when it comes near.
  restyle(look) {
    const glyphsChange = look.whitespace !== undefined && look.whitespace !== this.look.whitespace;
    Object.assign(this.look, look);
    for (const chunk of this.chunks) {
      if (chunk.rtDrawn || glyphsChange) this.downgrade(chunk);
      this.observer.unobserve(chunk);
      this.observer.observe(chunk);
    }
  }

  // The element of a token, drawn if need be; null when its turn is not shown as tokens.
  find(i) {
    const chunk = this.chunks.find(each => each.isConnected && each.rtRange[0] <= i && i < each.rtRange[1]);
    if (!chunk) return null;
    this.upgrade(chunk);
    return chunk.children[i - chunk.rtRange[0]];
  }
}
