// One turn as a card: who wrote it, how many tokens, what it says, what was odd about it.

import { button, copyButton, ghost, h, replace } from "../../lib/dom.js";
import { number, plural } from "../../lib/format.js";
import { jsonView, parsed } from "../../lib/json_view.js";
import { markdown, pieces, plain } from "../../lib/markdown_view.js";
import { grouped } from "../../lib/flags.js";
import { inert } from "../../lib/text.js";
import { MARK, figure } from "./images.js";

const PREVIEW = 20_000;
const LONGEST = 200_000;

export class TurnCard {
  // options: {rollout, image(number): a promise of one of its images, index, tokenText, mode(), rendered(), openFlag(flag)}
  constructor(turn, options) {
    this.turn = turn;
    this.options = options;
    this.flags = options.rollout.flags.filter(flag => flag.turn === options.index);
    this.raw = null;
    this.collapsed = turn.role === "system" && turn.content.length > 160;
    this.body = h("div.rt-turn-body");
    this.root = h(
      "article#turn",
      { class: `rt-turn rt-role-${turn.role}`, dataset: { turn: String(options.index), role: turn.role } },
      this.head(),
      this.strips(),
      this.body,
    );
    this.draw();
  }

  head() {
    const { turn } = this;
    const sampled =
      turn.n_sampled && turn.n_tokens
        ? h("span", { title: "tokens the policy sampled" }, `${number(turn.n_sampled)} sampled`)
        : null;
    const versions = turn.versions.length
      ? h.each(
          "span.rt-turn-versions",
          { title: "policy version by run of tokens" },
          turn.versions,
          ([version, count]) => h("span", `v${version}`, turn.versions.length > 1 && h("small", ` ×${number(count)}`)),
        )
      : null;
    this.toggle = h(
      "button.rt-turn-toggle",
      {
        "aria-expanded": "true",
        onclick: () => {
          this.collapsed = !this.collapsed;
          this.draw();
        },
      },
      h("span.rt-turn-caret", { "aria-hidden": "true" }),
      h("span.rt-turn-role", turn.role),
      turn.name ? h("span.rt-turn-name.rt-mono", inert(turn.name)) : null,
    );
    this.rawButton = this.options.tokenText
      ? ghost(
          "tokens",
          () => {
            this.raw = !this.asTokens();
            this.draw();
          },
          { title: "This turn token for token, markers included, or as a person reads it" },
        )
      : null;
    return h(
      "header.rt-turn-head",
      this.toggle,
      h(
        "span.rt-turn-facts",
        turn.n_tokens === null ? null : h("span", plural(turn.n_tokens, "token")),
        sampled,
        versions,
        turn.answers !== null && turn.answers !== undefined && h("span.rt-faint", `answers turn ${turn.answers}`),
      ),
      h(
        "span.rt-turn-tools",
        this.rawButton,
        copyButton(() => (this.asTokens() || !this.options.tokenText ? this.turn.raw() : this.turn.content)),
      ),
    );
  }

  strips() {
    const strips = [
      ...grouped(this.flags).map(entry =>
        h(
          "button",
          {
            class: `rt-strip rt-strip-${entry.severity}`,
            onclick: () => this.options.openFlag(entry.flags[0]),
            title: "Show the tokens",
          },
          h(
            "b.rt-nowrap",
            entry.name.replaceAll("_", " "),
            entry.flags.length > 1 ? ` \u00d7${number(entry.flags.length)}` : "",
          ),
          h("span", inert(entry.message)),
        ),
      ),
      ...this.turn.warnings
        .filter(warning => !this.flags.some(flag => warning.startsWith(`${flag.name}:`)))
        .map(warning => h("div.rt-strip.rt-strip-info", h("span", inert(warning)))),
    ];
    return strips.length ? h("div.rt-strips", strips) : null;
  }

  asTokens() {
    return Boolean(this.options.tokenText) && (this.raw ?? this.options.mode() === "tokens");
  }

  setMode() {
    this.raw = null;
    this.draw();
  }

  expand() {
    if (!this.collapsed) return;
    this.collapsed = false;
    this.draw();
  }

  draw() {
    const { turn } = this;
    this.root.classList.toggle("rt-collapsed", this.collapsed);
    this.toggle.setAttribute("aria-expanded", String(!this.collapsed));
    if (this.rawButton) this.rawButton.setAttribute("aria-pressed", String(this.asTokens()));
    if (this.collapsed) {
      replace(this.body, h("div.rt-turn-preview.rt-ellipsis", inert(turn.content.slice(0, 300)).replace(/\s+/g, " ")));
    } else if (this.asTokens()) {
      replace(
        this.body,
        this.options.tokenText.range(turn.start, turn.stop),
        (turn.images || []).map(number => this.figure(number)),
      );
    } else replace(this.body, this.reading());
  }

  reading() {
    const { turn } = this;
    const parts = [];
    if (turn.thinking !== null) {
      parts.push(
        h(
          "details.rt-thinking",
          { open: turn.thinking.length < 4000 },
          h("summary", "Thinking", h("span.rt-faint", ` ${number(turn.thinking.length)} characters`)),
          this.text(turn.thinking),
        ),
      );
    }
    parts.push(...this.content());
    for (const call of turn.tool_calls) parts.push(toolCall(call));
    if (!parts.length) parts.push(h("p.rt-faint", "Nothing but markers."));
    return parts;
  }

  // The text, with images where their tokens stand; those without a place follow.
  content() {
    const { content, images = [] } = this.turn;
    if (!images.length) return content ? [this.text(content)] : [];
    const pieces = content.split(MARK);
    const parts = pieces.flatMap((piece, at) => [
      piece.trim() ? this.text(piece) : null,
      at < pieces.length - 1 && at < images.length ? this.figure(images[at]) : null,
    ]);
    return [...parts, ...images.slice(pieces.length - 1).map(number => this.figure(number))].filter(Boolean);
  }

  figure(number) {
    return figure(this.options.rollout, number, this.options.image);
  }

  text(text) {
    if (text.length > LONGEST) return longText(text);
    const value = this.turn.role === "tool" ? parsed(text) : undefined;
    if (value !== undefined) return jsonView(value);
    return this.options.rendered() ? markdown(text) : plain(text);
  }
}

function toolCall(call) {
  return h(
    "div#tool-call",
    { class: "rt-call" + (call.parsed ? "" : " rt-call-bad") },
    h(
      "header",
      h("span.rt-call-name.rt-mono", inert(call.name || "unparsed call")),
      h("span.rt-faint.rt-mono", inert(call.id)),
      call.parsed ? null : h("span.rt-chip.rt-chip-warn", "could not be parsed"),
    ),
    callBody(call),
  );
}

function callBody(call) {
  const text = call.parsed ? call.arguments : call.raw;
  const value = call.parsed ? parsed(text) : undefined;
  if (value !== undefined) return jsonView(value);
  return text.length > LONGEST
    ? longText(text)
    : h("pre.rt-code", { tabindex: "0", dir: "auto" }, h("code", inert(text)));
}

function longText(text) {
  const [first, ...rest] = pieces(text, PREVIEW);
  const node = h("div", plain(first));
  node.append(
    button(`show all ${number(text.length)} characters`, event => {
      event.target.remove();
      node.append(plain(rest.join("")));
    }),
  );
  return node;
}
