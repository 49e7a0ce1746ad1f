// The conversation of one rollout, as a person reads it or token for token under an overlay.

import { button, h, replace } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { Tokens } from "../../lib/tracks.js";
import { legend } from "../overlays/legend.js";
import { OVERLAYS, available, extremes, paint } from "../overlays/registry.js";
import { hideTokenCard, showTokenCard } from "./token_card.js";
import { TokenText } from "./tokens.js";
import { TurnCard } from "./turn.js";

const SEVERITIES = ["", "info", "warn", "error"];

export class TranscriptView {
  // options: {scroller, onChange(patch), beside: tokens that share the overlays' range} ; look: {overlay, view, rendered, whitespace}
  constructor(rollout, options, look) {
    this.rollout = rollout;
    this.options = options;
    this.look = { overlay: null, view: "read", rendered: true, whitespace: false, ...look };
    this.values = new Map();
    this.tokens = rollout.tokens ? new Tokens(rollout.tokens, rollout.raw) : null;
    this.beside = options.beside ? [new Tokens(options.beside, "")] : [];
    this.tokenText = this.tokens ? new TokenText(this.tokens, options.scroller) : null;
    this.overlays = this.tokens ? available(this.tokens) : [];
    this.at = -1;
    if (this.tokenText) Object.assign(this.tokenText.look, this.tokenLook());
    this.toolbar = h("div", { class: "rt-transcript-tools" });
    this.legendSlot = h("div", { class: "rt-legend-slot" });
    this.turnCards = rollout.turns.map((turn, index) => {
      const raw = () => this.rollout.raw.slice(turn.char_start, turn.char_stop);
      return new TurnCard({ ...turn, raw }, { rollout, index, tokenText: this.tokenText, mode: () => this.mode(), rendered: () => this.look.rendered, openFlag: flag => this.showFlag(flag) });
    });
    this.turnsRoot = h("div", { class: "rt-turns" }, this.turnCards.map(card => card.root));
    this.root = h("div", { class: "rt-transcript", testid: "transcript" }, h("div", { class: "rt-transcript-bar" }, this.toolbar, this.legendSlot), this.turnsRoot);
    this.listen();
    this.drawTools();
  }

  mode() {
    return this.look.overlay || this.look.view === "tokens" ? "tokens" : "read";
  }

  tokenLook() {
    const overlay = this.overlays?.find(each => each.key === this.look.overlay) || available(this.tokens).find(each => each.key === this.look.overlay);
    this.painted = overlay ? paint(overlay, this.tokens, this.beside) : null;
    return { painted: this.painted, whitespace: this.look.whitespace, flagged: this.flaggedTokens() };
  }

  flaggedTokens() {
    const ranged = this.rollout.flags.filter(flag => flag.start !== null && flag.stop !== null);
    if (!ranged.length) return null;
    const marks = new Uint8Array(this.tokens.n);
    for (const flag of ranged) marks.fill(Math.max(SEVERITIES.indexOf(flag.severity), 1), flag.start, flag.stop);
    return marks;
  }

  setLook(patch) {
    const before = this.mode();
    const rendered = this.look.rendered;
    Object.assign(this.look, patch);
    if (this.tokenText) this.tokenText.restyle(this.tokenLook());
    if (before !== this.mode()) {
      if (this.tokenText) this.tokenText.chunks = [];
      for (const card of this.turnCards) card.setMode();
    } else if (rendered !== this.look.rendered) for (const card of this.turnCards) card.draw();
    this.drawTools();
  }

  drawTools() {
    const { look } = this;
    const change = patch => this.options.onChange(patch);
    const mode = this.mode();
    const segment = (key, label, title) => h("button", { type: "button", "aria-pressed": String(mode === key), title, testid: `view-${key}`, onclick: () => change({ view: key === "tokens" ? "tokens" : null, overlay: key === "tokens" ? look.overlay : null }) }, label);
    const overlaySelect = h("select", { class: "rt-select", "aria-label": "Token overlay", testid: "overlay-select", onchange: event => change({ overlay: event.target.value || null, view: event.target.value ? null : "tokens" }) },
      h("option", { value: "" }, "no overlay"), this.overlays.map(overlay => h("option", { value: overlay.key, selected: overlay.key === look.overlay }, overlay.label)));
    replace(this.toolbar,
      this.tokens ? h("div", { class: "rt-segmented", role: "group", "aria-label": "View" }, segment("read", "Read", "As a person reads it"), segment("tokens", "Tokens", "Token for token, markers included")) : h("span", { class: "rt-faint" }, "no token data in this trace"),
      this.tokens ? overlaySelect : null,
      mode === "tokens"
        ? [button("‹", () => this.jump(-1), { title: "Previous extreme or flagged token (E)", "aria-label": "Previous extreme token" }), button("›", () => this.jump(1), { title: "Next extreme or flagged token (e)", "aria-label": "Next extreme token", testid: "next-extreme" }),
          button("␣↵", () => change({ whitespace: !look.whitespace }), { title: "Show whitespace (w)", "aria-pressed": String(look.whitespace), testid: "whitespace" })]
        : button("rendered", () => change({ rendered: !look.rendered }), { title: "Markdown and formulas drawn, or as plain text (m)", "aria-pressed": String(look.rendered), testid: "rendered" }),
      h("span", { class: "rt-transcript-end" },
        button("collapse all", () => this.collapseAll(true), { class: "rt-ghost" }), button("expand all", () => this.collapseAll(false), { class: "rt-ghost" })));
    const known = OVERLAYS.find(each => each.key === look.overlay);
    const why = known ? `This rollout carries nothing for “${known.label}”: its trainer did not hand it over per token.` : `There is no overlay “${look.overlay}”. There are: ${OVERLAYS.map(each => each.key).join(", ")}.`;
    const missing = look.overlay && !this.painted ? h("div", { class: "rt-legend" }, why) : null;
    replace(this.legendSlot, mode === "tokens" && this.painted ? legend(this.painted) : missing);
  }

  collapseAll(collapsed) {
    for (const card of this.turnCards) { card.collapsed = collapsed; card.draw(); }
  }

  listen() {
    let timer = 0;
    this.turnsRoot.addEventListener("mouseover", event => {
      const token = event.target.closest?.("[data-i]");
      clearTimeout(timer);
      if (token) timer = setTimeout(() => this.showCard(Number(token.dataset.i), token), 60);
      else hideTokenCard();
    });
    this.turnsRoot.addEventListener("mouseleave", () => { clearTimeout(timer); hideTokenCard(); });
    this.turnsRoot.addEventListener("click", event => {
      const token = event.target.closest?.("[data-i]");
      if (token && !String(getSelection())) this.options.onChange({ token: token.dataset.i });
    });
  }

  valuesOf(overlay) {
    if (!this.values.has(overlay.key)) this.values.set(overlay.key, overlay.values(this.tokens));
    return this.values.get(overlay.key);
  }

  turnOf(i) {
    return this.rollout.turns.findIndex(turn => turn.start <= i && i < turn.stop);
  }

  showCard(i, anchor) {
    const turn = this.turnOf(i);
    const flags = this.rollout.flags.filter(flag => flag.start !== null && flag.start <= i && i < flag.stop);
    showTokenCard(this.tokens, i, anchor, { turn: turn < 0 ? null : `${turn}, ${this.rollout.turns[turn].role}`, flags, values: overlay => this.valuesOf(overlay) });
  }

  // Scrolls to a token and shows its card.
  goTo(i, { card = true } = {}) {
    const turn = this.turnOf(i);
    if (turn < 0 || !this.tokenText) return;
    this.turnCards[turn].expand();
    if (!this.turnCards[turn].asTokens()) { this.turnCards[turn].raw = true; this.turnCards[turn].draw(); }
    const node = this.tokenText.find(i);
    if (!node) return;
    this.at = i;
    this.turnsRoot.querySelector(".rt-at")?.classList.remove("rt-at");
    node.classList.add("rt-at");
    node.scrollIntoView({ block: "center" });
    if (card) requestAnimationFrame(() => this.showCard(i, node));
  }

  jump(direction) {
    if (!this.tokens) return;
    const flagged = this.rollout.flags.filter(flag => flag.start !== null).map(flag => flag.start);
    const places = [...new Set([...(this.painted ? extremes(this.painted) : []), ...flagged])].sort((a, b) => a - b);
    if (!places.length) return;
    const next = direction > 0 ? places.find(i => i > this.at) ?? places[0] : places.findLast(i => i < this.at) ?? places[places.length - 1];
    this.goTo(next);
    this.options.onJump?.(places.indexOf(next) + 1, places.length);
  }

  showFlag(flag) {
    if (flag.turn !== null) this.turnCards[flag.turn]?.expand();
    if (flag.start !== null && this.tokens) this.goTo(flag.start);
    else if (flag.turn !== null) this.turnCards[flag.turn]?.root.scrollIntoView({ block: "start" });
  }

  describe() {
    return `${number(this.rollout.turns.length)} turns`;
  }

  forget() {
    hideTokenCard();
    this.tokenText?.forget();
  }
}
