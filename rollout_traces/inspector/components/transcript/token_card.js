// The card beside a token: its id, text, position and every value known of it.

import { h, replace } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { showWhitespace } from "../../lib/text.js";
import { available } from "../overlays/registry.js";

const NAMES = {
  versions: "version",
  turn_ids: "turn of the policy",
  logprobs: "rollout logprob",
  prox_logprobs: "prox logprob",
  new_logprobs: "new logprob",
  ref_logprobs: "reference logprob",
  advantages: "advantage",
  values: "value",
  entropies: "entropy",
  token_rewards: "token reward",
  loss_weights: "loss weight",
};

let card = null;

function element() {
  if (!card) {
    card = h("div.rt-card-float.rt-token-card#token-card", { hidden: true });
    document.body.append(card);
    window.addEventListener("rt-escape", hideTokenCard);
  }
  return card;
}

export function hideTokenCard() {
  if (card) card.hidden = true;
}

export function showTokenCard(tokens, i, anchor, turns, { turn, flags, values }) {
  const node = element();
  const text = tokens.text(i);
  const rows = [];
  const row = (name, value, cls) => rows.push(h("dt", name), h("dd", cls ? { class: cls } : null, value));
  row("id", String(tokens.get("ids")[i]));
  row("position", `${number(i)} of ${number(tokens.n)}`);
  if (turn) row("turn", turn);
  row("in the loss", tokens.get("loss_mask")[i] ? "yes" : "no");
  row("sampled", tokens.get("response_mask")[i] ? "yes" : "no");
  for (const [name, label] of Object.entries(NAMES)) {
    if (!tokens.has(name)) continue;
    const value = tokens.get(name)[i];
    if (Number.isNaN(value) || ((name === "versions" || name === "turn_ids") && value < 0)) continue;
    row(label, number(name === "turn_ids" ? value + 1 : value)); // counted as What if does
    if (name === "logprobs") row("probability", number(Math.exp(value)));
  }
  for (const overlay of available(tokens)) {
    if (!overlay.derived) continue;
    const value = values(overlay)?.[i];
    if (value !== undefined && !Number.isNaN(value))
      row(overlay.label.toLowerCase(), overlay.names?.[value] ?? number(value));
  }
  replace(
    node,
    h(
      "div.rt-token-text.rt-mono",
      text ? showWhitespace(text).replace(/↵\n/g, "↵") : "completes no character",
      tokens.get("special")[i] ? h("span.rt-chip", "special") : null,
    ),
    h("dl", rows),
    flags.length > 0 &&
      h.each("div.rt-token-flags", flags, flag => h("p", { class: `rt-${flag.severity}` }, flag.message)),
  );
  node.hidden = false;
  place(node, anchor.getClientRects()[0] || anchor.getBoundingClientRect(), turns.getBoundingClientRect().right);
}

// Beside the turns where there is room, else below the token, above it, or beside it: never over it.
function place(node, box, edge) {
  const { width, height } = node.getBoundingClientRect();
  const isBeside = edge + 8 + width + 8 <= innerWidth;
  let left = isBeside ? edge + 8 : Math.min(Math.max(8, box.left), innerWidth - width - 8);
  let top = isBeside ? Math.min(box.top, innerHeight - height - 34) : box.bottom + 8;
  if (top + height >= innerHeight - 8) top = box.top - height - 8;
  if (top < 8) {
    top = Math.max(8, innerHeight - height - 8);
    left = box.right + 8 + width < innerWidth ? box.right + 8 : Math.max(8, box.left - width - 8);
  }
  node.style.left = `${left}px`;
  node.style.top = `${top}px`;
}
