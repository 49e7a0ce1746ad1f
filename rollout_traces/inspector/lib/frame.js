// What every page offers: light or dark, and the list of its keys.

import { ghost, h } from "./dom.js";
import { dispatch, listed, shortcut } from "./keyboard.js";
import * as state from "./state.js";

// The keys that every page has, and the one place that listens to them.
export function listenToKeys() {
  shortcut("?", "This help", showHelp);
  shortcut("t", "Light or dark", toggleTheme);
  shortcut("Escape", "Leave a field, close a card", event => {
    if (document.querySelector("dialog[open]")) return false;
    event.target.blur?.();
    window.dispatchEvent(new Event("rt-escape"));
    return undefined;
  });
  document.addEventListener("keydown", event => dispatch(event, state.get().page));
}

export function toggleTheme() {
  const theme = document.documentElement.dataset.rtTheme === "dark" ? "light" : "dark";
  document.documentElement.dataset.rtTheme = theme;
  try {
    localStorage.setItem("rt-theme", theme);
  } catch {
    /* a private window keeps it for this page alone */
  }
}

export function showHelp() {
  document.querySelector(".rt-help")?.remove();
  const sections = Map.groupBy
    ? Map.groupBy(listed(state.get().page), entry => entry.section)
    : grouped(listed(state.get().page));
  const name = key => ({ ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc" })[key] || key;
  const dialog = h(
    "dialog.rt-dialog.rt-help",
    { "data-testid": "help" },
    h(
      "div.rt-help-head",
      h("h2", "Keyboard"),
      ghost("close", () => dialog.close()),
    ),
    h(
      "div.rt-help-grid",
      [...sections].map(([section, entries]) => [
        h("h3", section),
        entries.map(entry =>
          h(
            "div.rt-help-row",
            h("span", entry.meaning),
            h(
              "span",
              entry.keys.map((key, i) => [i ? " " : null, h("kbd", name(key))]),
            ),
          ),
        ),
      ]),
    ),
  );
  dialog.addEventListener("click", event => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
}

function grouped(entries) {
  const sections = new Map();
  for (const entry of entries) sections.set(entry.section, [...(sections.get(entry.section) || []), entry]);
  return sections;
}
