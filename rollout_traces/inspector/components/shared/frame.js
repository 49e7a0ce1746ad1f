// The frame around the inspector's pages where there is no server: what is looked at, which page, theme, keys.

import { ghost, h, replace } from "../../lib/dom.js";
import { listenToKeys, showHelp, toggleTheme } from "../../lib/frame.js";
import { shortcut } from "../../lib/keyboard.js";
import { onPopulation, setPopulation, showPopulationOf, whenReady } from "../../lib/pages.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";

// The keys that these pages have in the inspector.
const KEYS = { run: "6", rollouts: "1", compare: "2", group: "5" };

// pages: [{name, title}], mounted by whoever calls; bar(): nodes of what is looked at; made: who wrote it;
// missing: what is said of a page that is not there. Returns what draws the page that the address names.
export function drawFrame({ pages, bar, made, missing }) {
  let shown = null;
  let back = pages[0].name;
  const top = h("div.rt-pickers#run-picker");
  const tabs = h("nav.rt-tabs", { "aria-label": "Pages" });
  const population = h("div.rt-population#population");
  document.documentElement.dataset.rtTheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  onPopulation(parts => {
    replace(population, parts);
    population.title = population.textContent;
  });
  const tool = (label, action, title, testid) => ghost(label, action, { title, "aria-label": title, testid });
  document.body.prepend(
    h(
      "div.rt-view",
      h(
        "header.rt-top",
        h("span.rt-brand", "rollout traces"),
        top,
        tabs,
        h(
          "div.rt-top-tools",
          tool("◐", toggleTheme, "Light or dark (t)", "theme"),
          tool("?", showHelp, "Keyboard (?)", "help-button"),
        ),
      ),
      h("footer.rt-status", population, h("div.rt-faint.rt-nowrap.rt-wide-only#shared-made", inert(made))),
    ),
  );
  listenToKeys();
  if (pages.length > 1)
    for (const { name, title } of pages)
      shortcut(KEYS[name], title, () => state.set({ page: name, token: null }), { section: "Pages" });
  return async function refresh(changed) {
    const now = state.get();
    if (!pages.some(page => page.name === now.page)) {
      state.set({ page: back }, { fill: true });
      setPopulation(back, missing);
      return;
    }
    back = now.page;
    const page = await whenReady(now.page);
    showPopulationOf(now.page);
    replace(top, bar());
    if (pages.length > 1) tabs.replaceChildren(...pages.map(each => tab(each, now)));
    if (shown !== page) {
      shown?.element.classList.remove("rt-active");
      page.element.classList.add("rt-active");
      shown = page;
      page.update(now, new Set(state.KEYS));
    } else page.update(now, changed);
  };
}

function tab({ name, title }, now) {
  return h(
    "a",
    {
      ...state.link({ page: name, token: null }),
      testid: `shared-${name}`,
      "aria-current": name === now.page ? "page" : null,
    },
    title,
  );
}
