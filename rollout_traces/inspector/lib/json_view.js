// JSON as a person reads it: short values whole, long ones folded with their size and drawn when opened.

import { ghost, h } from "./dom.js";
import { number, plural } from "./format.js";
import { inert } from "./text.js";

const SHORT = 1200;
const MOST_NESTED = 60;
const MOST_SHOWN = 200;
const LONGEST_PARSED = 2_000_000;

// The value a text holds, or undefined: not JSON, or nested beyond what is worth folding.
export function parsed(text) {
  const start = text.search(/\S/);
  if (start < 0 || !"[{".includes(text[start]) || text.length > LONGEST_PARSED || nesting(text) > MOST_NESTED)
    return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export function nesting(text) {
  let depth = 0;
  let deepest = 0;
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (quoted) {
      if (code === 92) i++;
      else if (code === 34) quoted = false;
    } else if (code === 34) quoted = true;
    else if (code === 91 || code === 123) {
      if (++depth > deepest) deepest = depth;
    } else if (code === 93 || code === 125) depth--;
  }
  return deepest;
}

export function sizeOf(value) {
  const length = JSON.stringify(value)?.length ?? 0;
  const count = Array.isArray(value) ? plural(value.length, "item") : plural(Object.keys(value).length, "key");
  return `${count}, ${number(length)} characters`;
}

// A parsed value: indented where it is short, else a tree that unfolds.
export function jsonView(value) {
  if (JSON.stringify(value).length <= SHORT)
    return h("pre.rt-code", { tabindex: "0" }, h("code", inert(JSON.stringify(value, null, 2))));
  return h("div.rt-json.rt-code#json", { dir: "ltr" }, entries(value));
}

function entries(value, from = 0) {
  const all = Array.isArray(value) ? value.map((each, i) => [i, each]) : Object.entries(value);
  const shown = all.slice(from, from + MOST_SHOWN).map(([key, each]) => entry(key, each));
  const left = all.length - from - MOST_SHOWN;
  if (left > 0) {
    const more = ghost(`${number(left)} more`, () => more.replaceWith(...entries(value, from + MOST_SHOWN)));
    shown.push(more);
  }
  return shown;
}

function entry(key, value) {
  const name = h("span.rt-json-key", inert(String(key)), ": ");
  const short = value === null || typeof value !== "object" ? null : JSON.stringify(value);
  if (short === null) return h("div.rt-json-leaf", name, leaf(value));
  if (short.length <= 80) return h("div.rt-json-leaf", name, inert(short));
  const node = h(
    "details",
    h("summary", name, h("span.rt-faint", `${Array.isArray(value) ? "[…]" : "{…}"} ${sizeOf(value)}`)),
  );
  node.addEventListener("toggle", () => {
    if (node.open && node.children.length === 1) node.append(...entries(value));
  });
  return node;
}

function leaf(value) {
  const text = String(value);
  const shown = h(
    "span",
    { class: typeof value === "string" ? "rt-json-text" : "rt-json-value", dir: "auto" },
    inert(text.slice(0, SHORT)),
  );
  if (text.length > SHORT) {
    const more = ghost(`all ${number(text.length)} characters`, () => {
      shown.textContent = inert(text);
      more.remove();
    });
    return [shown, more];
  }
  return shown;
}
