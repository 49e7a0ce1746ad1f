// Formulas, drawn by the KaTeX that Gradio brings. What it cannot read, or what is nested or long beyond any
// use, is shown as it was written, marks and all.

import { h } from "./dom.js";
import { inert } from "./text.js";

export const DEEPEST = 40;
export const MOST_COMMANDS = 400;
const TAKES_ARGUMENT =
  /^\\(?:[dtc]?frac|sqrt|[dt]?binom|boxed|(?:over|under)(?:line|brace|set)|stackrel|(?:wide)?(?:hat|tilde)|bar|vec|d{1,3}ot|math[a-z]+|text[a-z]*|operatorname|left|begin|color|tag|phantom|not)$/;
const TOKEN = /\\(?:[a-zA-Z]+|[^])|[{}^_]/g;

let loading = null;
let katex = null;

// How deep a formula nests: braces, environments, and commands that take what follows as their argument.
// Also how many commands it holds.
export function measure(text) {
  let open = 0;
  let pending = 0;
  let deepest = 0;
  let commands = 0;
  let last = 0;
  for (const match of text.matchAll(TOKEN)) {
    const token = match[0];
    const between = match.index - last;
    last = match.index + token.length;
    if (between > 0 && text.slice(match.index - between, match.index).trim()) pending = 0;
    if (token === "{" || token === "\\left" || token === "\\begin") open++;
    else if (token === "}" || token === "\\right" || token === "\\end") {
      open = Math.max(open - 1, 0);
      pending = 0;
    } else if (token === "^" || token === "_" || TAKES_ARGUMENT.test(token)) pending++;
    else pending = 0;
    if (token.length > 1) commands++;
    deepest = Math.max(deepest, open + pending);
  }
  return { deepest, commands };
}

export function drawable(text) {
  const { deepest, commands } = measure(text);
  return deepest <= DEEPEST && commands <= MOST_COMMANDS;
}

// Loads KaTeX once: its module, or null where there is none.
export function loadKatex() {
  const where = window.rolloutTraces?.katex;
  if (!where) return Promise.resolve(null);
  if (!loading) {
    const root = (window.gradio_config?.root || "").replace(/\/$/, "") + "/";
    document.head.append(h("link", { rel: "stylesheet", href: root + where[1] }));
    loading = import(root + where[0]).then(
      module => {
        katex = module.default;
        return katex;
      },
      () => null,
    );
  }
  return loading;
}

// A node that holds the formula as it was written until `draw` replaces it.
export function formula({ text, source, display }) {
  const node = h(
    display ? "div" : "span",
    { class: display ? "rt-math rt-math-block" : "rt-math", dir: "ltr" },
    inert(source),
  );
  node.rtFormula = { text, display };
  return node;
}

// Draws into a node beside it first, so that a formula that cannot be read stays as it was written.
export function draw(node) {
  const { text, display } = node.rtFormula;
  const drawn = document.createElement("span");
  try {
    if (!drawable(text)) throw new RangeError("too deep");
    katex.render(text, drawn, {
      displayMode: Boolean(display),
      throwOnError: true,
      trust: false,
      strict: false,
      maxExpand: 300,
      maxSize: 20,
      output: "html",
    });
    node.replaceChildren(...drawn.childNodes);
    node.classList.add("rt-math-drawn");
  } catch {
    node.classList.add("rt-math-source");
    node.title = "A formula that cannot be drawn, as it was written";
  }
}
