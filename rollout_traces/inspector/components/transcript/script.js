// The conversation of one rollout, as a person reads it or token for token under an overlay.

import { button, ghost, h, replace, segmented, select } from "../../lib/dom.js";
import { tokenMarks } from "../../lib/flags.js";
import { Tokens } from "../../lib/tracks.js";
import { legend } from "../overlays/legend.js";
import { OVERLAYS, available, extremes, missing, paint } from "../overlays/registry.js";
import { Outline, nextTurn } from "./outline.js";
import { turnTable } from "./turn_table.js";
import { hideTokenCard, showTokenCard } from "./token_card.js";
import { TokenText } from "./tokens.js";
import { TurnCard } from "./turn.js";

export class TranscriptView {
  // options: {scroller, onChange(patch), around(what): a promise of what is around the rollout, rules: those of the page What if, image(number): a promise of one of its images, beside: tokens that share the overlays' range, markFlags: false to leave
  // flagged tokens unmarked}; look: {overlay, view, rendered, whitespace}
  constructor(rollout, options, look) {
    this.rollout = rollout;
    this.options = options;
    this.look = { overlay: null, view: "read", rendered: true, whitespace: false, ...look };
    this.values = new Map();
    this.tokens = rollout.tokens ? new Tokens(rollout.tokens, rollout.raw) : null;
    this.around = { turns: rollout.turns, group: null, step: null };
    this.asking = new Set();
    if (this.tokens && !options.around) this.tokens.inGroup = false;
    if (this.tokens) this.tokens.rules = options.rules;
    this.beside = options.beside ? [new Tokens(options.beside, "")] : [];
    this.tokenText = this.tokens ? new TokenText(this.tokens, options.scroller) : null;
    this.overlays = this.tokens ? available(this.tokens) : [];
    this.at = -1;
    if (this.tokenText) Object.assign(this.tokenText.look, this.tokenLook());
    this.toolbar = h("div.rt-transcript-tools");
    this.legendSlot = h("div.rt-legend-slot");
    this.turnCards = rollout.turns.map((turn, index) => {
      const raw = () => this.rollout.raw.slice(turn.char_start, turn.char_stop);
      return new TurnCard(
        { ...turn, raw },
        {
          rollout,
          image: options.image,
          index,
          tokenText: this.tokenText,
          mode: () => this.mode(),
          rendered: () => this.look.rendered,
          openFlag: flag => this.showFlag(flag),
        },
      );
    });
    this.turnsRoot = h.each("div.rt-turns", this.turnCards, card => card.root);
    this.outline = new Outline(rollout, index => this.goToTurn(index));
    this.turn = -1;
    this.root = h(
      "div.rt-transcript#transcript",
      h("div.rt-transcript-bar", this.toolbar, rollout.turns.length > 1 && this.outline.root, this.legendSlot),
      this.turnsRoot,
    );
    this.listen();
    this.drawTools();
  }

  mode() {
    return this.tokens && (this.look.overlay || this.look.view === "tokens") ? "tokens" : "read";
  }

  tokenLook() {
    const overlay = this.overlays.find(each => each.key === this.look.overlay);
    const wanted = overlay ? missing(overlay, this.around) : [];
    for (const what of wanted) this.ask(what);
    this.painted = overlay && !wanted.length ? paint(overlay, this.tokens, this.beside, this.around) : null;
    return { painted: this.painted, whitespace: this.look.whitespace, flagged: this.flaggedTokens() };
  }

  // Asks for the group or the step, and paints when it is there.
  async ask(what) {
    if (this.asking.has(what) || !this.options.around) return;
    this.asking.add(what);
    try {
      this.around[what] = await this.options.around(what);
      this.values.clear();
      this.tokenText.restyle(this.tokenLook());
    } catch (error) {
      this.failed = error.message;
    }
    this.drawTools();
  }

  // Other rules for the overlay that shows what they do.
  setRules(rules) {
    if (!this.tokens) return;
    this.tokens.rules = rules;
    this.values.clear();
    this.tokenText.restyle(this.tokenLook());
    this.drawTools();
  }

  flaggedTokens() {
    return this.options.markFlags === false ? null : tokenMarks(this.rollout.flags, this.tokens.n);
  }

  setLook(patch) {
    const before = this.mode();
    const rendered = this.look.rendered;
    Object.assign(this.look, patch);
    if (this.tokenText) this.tokenText.restyle(this.tokenLook());
    if (before !== this.mode()) {
      this.tokenText?.startOver();
      for (const card of this.turnCards) card.setMode();
    } else if (rendered !== this.look.rendered) for (const card of this.turnCards) card.draw();
    this.drawTools();
  }

  drawTools() {
    const { look } = this;
    const change = patch => this.options.onChange(patch);
    const mode = this.mode();
    const overlaySelect = select(
      [["", "no overlay"], ...this.overlays.map(overlay => [overlay.key, overlay.label])],
      look.overlay,
      key => change({ overlay: key || null, view: key ? null : "tokens" }),
      { "aria-label": "Token overlay", testid: "overlay-select" },
    );
    replace(
      this.toolbar,
      this.tokens
        ? segmented(
            "View",
            mode,
            [
              ["read", "Read", "As a person reads it"],
              ["tokens", "Tokens", "Token for token, markers included"],
            ],
            key => change(key === "tokens" ? { view: key, overlay: look.overlay } : { view: null, overlay: null }),
            "view",
          )
        : h("span.rt-faint", "no token data in this trace"),
      this.tokens ? overlaySelect : null,
      mode === "tokens"
        ? [
            button("‹", () => this.jump(-1), {
              title: "Previous extreme or flagged token (E)",
              "aria-label": "Previous extreme token",
            }),
            button("›", () => this.jump(1), {
              title: "Next extreme or flagged token (e)",
              "aria-label": "Next extreme token",
              testid: "next-extreme",
            }),
            button("␣↵", () => change({ whitespace: !look.whitespace }), {
              title: "Show whitespace (w)",
              "aria-pressed": String(look.whitespace),
              testid: "whitespace",
            }),
          ]
        : button("rendered", () => change({ rendered: !look.rendered }), {
            title: "Markdown and formulas drawn, or as plain text (m)",
            "aria-pressed": String(look.rendered),
            testid: "rendered",
          }),
      h(
        "span.rt-transcript-end",
        this.tokens &&
          this.options.around &&
          ghost("turn table", () => this.toggleTable(), {
            "aria-pressed": String(Boolean(this.table)),
            title: "Each turn in figures (y)",
            testid: "turn-table-button",
          }),
        ghost("collapse all", () => this.collapseAll(true)),
        ghost("expand all", () => this.collapseAll(false)),
      ),
    );
    const known = OVERLAYS.find(each => each.key === look.overlay);
    const why = known
      ? `This rollout carries nothing for “${known.label}”: its trainer did not hand it over per token.`
      : `There is no overlay “${look.overlay}”. There are: ${OVERLAYS.map(each => each.key).join(", ")}.`;
    const waits = known && this.overlays.includes(known);
    const absent =
      look.overlay && !this.painted
        ? h("div.rt-legend", waits ? this.failed || "Reading what is around the rollout…" : why)
        : null;
    replace(this.legendSlot, mode === "tokens" && this.painted ? legend(this.painted) : absent);
  }

  // A table of the turns above the conversation, or none.
  toggleTable() {
    if (this.table) this.table.remove();
    this.table = this.table ? null : turnTable(this.rollout, this.tokens, index => this.goToTurn(index));
    if (this.table) {
      this.turnsRoot.before(this.table);
      this.table.scrollIntoView({ block: "nearest" });
    }
    this.drawTools();
  }

  collapseAll(collapsed) {
    for (const card of this.turnCards) {
      card.collapsed = collapsed;
      card.draw();
    }
  }

  listen() {
    let timer = 0;
    this.turnsRoot.addEventListener("mouseover", event => {
      const token = event.target.closest?.("[data-i]");
      clearTimeout(timer);
      if (token) timer = setTimeout(() => this.showCard(Number(token.dataset.i), token), 60);
      else hideTokenCard();
    });
    this.turnsRoot.addEventListener("mouseleave", () => {
      clearTimeout(timer);
      hideTokenCard();
    });
    this.turnsRoot.addEventListener("click", event => {
      const token = event.target.closest?.("[data-i]");
      if (token && !String(getSelection())) this.options.onChange({ token: token.dataset.i });
    });
  }

  valuesOf(overlay) {
    if (missing(overlay, this.around).length) return null;
    if (!this.values.has(overlay.key)) this.values.set(overlay.key, overlay.values(this.tokens, this.around));
    return this.values.get(overlay.key);
  }

  turnOf(i) {
    return this.rollout.turns.findIndex(turn => turn.start <= i && i < turn.stop);
  }

  showCard(i, anchor) {
    const turn = this.turnOf(i);
    const flags = this.rollout.flags.filter(flag => flag.start !== null && flag.start <= i && i < flag.stop);
    showTokenCard(this.tokens, i, anchor, this.turnsRoot, {
      turn: turn < 0 ? null : `${turn}, ${this.rollout.turns[turn].role}`,
      flags,
      values: overlay => this.valuesOf(overlay),
    });
  }

  // Scrolls to a token and shows its card.
  goTo(i, { card = true } = {}) {
    const turn = this.turnOf(i);
    if (turn < 0 || !this.tokenText) return;
    this.turnCards[turn].expand();
    if (!this.turnCards[turn].asTokens()) {
      this.turnCards[turn].raw = true;
      this.turnCards[turn].draw();
    }
    const node = this.tokenText.find(i);
    if (!node) return;
    this.at = i;
    this.turnsRoot.querySelector(".rt-at")?.classList.remove("rt-at");
    node.classList.add("rt-at");
    node.scrollIntoView({ block: "center" });
    if (card) requestAnimationFrame(() => this.showCard(i, node));
  }

  // Under an overlay to its extremes, the greatest first and then on from there; without one to flagged tokens.
  jump(direction) {
    if (!this.tokens) return;
    const ranked = this.painted
      ? extremes(this.painted)
      : this.rollout.flags.filter(flag => flag.start !== null).map(flag => flag.start);
    const places = [...new Set(ranked)].sort((a, b) => a - b);
    if (!places.length) return;
    const start = this.jumped === this.painted ? this.at : -1;
    this.jumped = this.painted;
    const onward =
      direction > 0 ? (places.find(i => i > start) ?? places[0]) : (places.findLast(i => i < start) ?? places.at(-1));
    const next = start < 0 ? ranked[0] : onward;
    this.goTo(next);
    this.options.onChange({ token: next });
  }

  goToTurn(index) {
    const card = this.turnCards[index];
    if (!card) return;
    card.expand();
    this.turn = index;
    this.outline.mark(index);
    card.root.scrollIntoView({ block: "start" });
    card.toggle.focus({ preventScroll: true });
  }

  // To the next turn of a kind ("assistant", "odd"), from the one gone to last, else from the top of the view.
  stepTurn(kind, by) {
    const wanted =
      kind === "assistant"
        ? turn => turn.role === "assistant"
        : (_, mark) => mark.severity === "error" || mark.severity === "warn" || mark.failed;
    const next = nextTurn(this.rollout.turns, this.outline.marks, this.turn < 0 && by < 0 ? 0 : this.turn, by, wanted);
    if (next >= 0) this.goToTurn(next);
  }

  showFlag(flag) {
    if (flag.turn !== null) this.turnCards[flag.turn]?.expand();
    if (flag.start !== null && this.tokens) this.goTo(flag.start);
    else if (flag.turn !== null) this.turnCards[flag.turn]?.root.scrollIntoView({ block: "start" });
  }

  forget() {
    hideTokenCard();
    this.tokenText?.forget();
  }
}
