// What every page offers: light or dark, and the list of its keys.

import { h, openDialog } from "./dom.js";
import { dispatch, listed, shortcut } from "./keyboard.js";
import { keep } from "./kept.js";
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
  keep("rt-theme", theme);
}

export function showHelp() {
  const entries = listed(state.get().page);
  const sections = [...new Set(entries.map(entry => entry.section))];
  const name = key => ({ ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc" })[key] || key;
  const row = entry =>
    h(
      "div.rt-help-row",
      h("span", entry.meaning),
      h.each("span", entry.keys, (key, i) => [i ? " " : null, h("kbd", name(key))]),
    );
  const grid = h.each("div.rt-help-grid", sections, section => [
    h("h3", section),
    entries.filter(entry => entry.section === section).map(row),
  ]);
  const dialog = openDialog("rt-help", "help", "Keyboard", grid);
  dialog.addEventListener("click", event => {
    if (event.target === dialog) dialog.close();
  });
}
