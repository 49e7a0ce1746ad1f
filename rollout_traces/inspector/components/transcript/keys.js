// The keys of reading one rollout, and what its view changes as a part of the address.

import { shortcut } from "../../lib/keyboard.js";

// scroller() and view() give what is shown now; change(patch) takes what a TranscriptView's onChange takes.
export function readingKeys(page, { scroller, view, change }) {
  const tokens = { page, section: "Tokens" };
  const turns = { page, section: "Turns" };
  shortcut("Home", "Top of the rollout", () => scroller().scrollTo({ top: 0 }), turns);
  shortcut("End", "Bottom of the rollout", () => scroller().scrollTo({ top: scroller().scrollHeight }), turns);
  shortcut("0", "First turn", () => view()?.goToTurn(0), turns);
  shortcut("9", "Last turn", () => view()?.goToTurn(view().turnCards.length - 1), turns);
  shortcut("a", "Next turn of the assistant", () => view()?.stepTurn("assistant", 1), turns);
  shortcut("A", "Previous turn of the assistant", () => view()?.stepTurn("assistant", -1), turns);
  shortcut("b", "Next turn with an error or a warning", () => view()?.stepTurn("odd", 1), turns);
  shortcut("B", "Previous turn with an error or a warning", () => view()?.stepTurn("odd", -1), turns);
  shortcut(
    "v",
    "Read or tokens",
    () => view() && change(view().mode() === "tokens" ? { view: null, overlay: null } : { view: "tokens" }),
    tokens,
  );
  shortcut(
    "m",
    "Markdown and formulas, or plain text",
    () => view() && change({ rendered: !view().look.rendered }),
    tokens,
  );
  shortcut("o", "Next overlay", () => cycle(view(), 1, change), tokens);
  shortcut("O", "Previous overlay", () => cycle(view(), -1, change), tokens);
  shortcut("e", "Next extreme of the overlay, or flagged token", () => view()?.jump(1), tokens);
  shortcut("E", "Previous extreme of the overlay, or flagged token", () => view()?.jump(-1), tokens);
  shortcut("y", "Each turn in figures", () => view()?.tokens && view().toggleTable(), turns);
  shortcut("w", "Show whitespace", () => view() && change({ whitespace: !view().look.whitespace }), tokens);
}

export const LOOK_KEYS = ["overlay", "view", "plain", "ws"];

// How the address says that a rollout is looked at.
export const lookOf = now => ({
  overlay: now.overlay || null,
  view: now.view || "read",
  rendered: !now.plain,
  whitespace: Boolean(now.ws),
});

export function lookPatch(patch) {
  const next = {};
  if ("overlay" in patch) next.overlay = patch.overlay;
  if ("view" in patch) next.view = patch.view === "read" ? null : patch.view;
  if ("rendered" in patch) next.plain = patch.rendered ? null : 1;
  if ("whitespace" in patch) next.ws = patch.whitespace ? 1 : null;
  if ("token" in patch) next.token = patch.token;
  return next;
}

function cycle(view, by, change) {
  if (!view?.overlays.length) return;
  const keys = [null, ...view.overlays.map(overlay => overlay.key)];
  const at = keys.indexOf(view.look.overlay);
  const next = keys[(at + by + keys.length) % keys.length];
  change({ overlay: next, view: next ? null : "tokens" });
}
