// Where one is, as an address: every state of the page is a query string that can be pasted.

import { words } from "./text.js";

export const KEYS = words(
  "page project run split step group sample id follow scope where text sort view overlay plain ws token a b rows columns hist flag " +
    "explain episode rules smooth charts axis log steps against prompt order other more evals mark at viewer live lane minutes",
);

// Names that differ in the address, because Gradio reads `page` and `view` itself.
const IN_ADDRESS = { page: "tab", view: "mode" };
const nameOf = key => IN_ADDRESS[key] || key;

export function parse(search) {
  const query = new URLSearchParams(search);
  const state = {};
  for (const key of KEYS) if (query.get(nameOf(key))) state[key] = query.get(nameOf(key));
  return state;
}

export function format(state) {
  const query = new URLSearchParams();
  for (const key of KEYS)
    if (state[key] !== undefined && state[key] !== null && state[key] !== "")
      query.set(nameOf(key), String(state[key]));
  const text = query.toString();
  return text ? "?" + text : "";
}

// What choosing another one makes meaningless: a step's group, a run's traces, ... Step, group and sample are
// kept in another run or split, whose page goes to what is nearest. (Filling in what the address left open makes
// nothing meaningless.)
const BELOW = {
  project: words("run split step group sample id a b token episode prompt other more against steps evals live"),
  run: words("id a b token episode live"),
  split: words("id a b token episode"),
  step: words("group sample id token episode steps"),
  group: words("sample id token"),
  sample: words("id token"),
  id: words("token mark at"),
  a: words("at"),
  b: words("at"),
};

export function apply(state, patch) {
  const next = { ...state };
  for (const key of Object.keys(patch)) {
    if (next[key] === undefined || String(next[key]) === String(patch[key] ?? "")) continue;
    for (const below of BELOW[key] || []) if (!(below in patch)) delete next[below];
  }
  for (const [key, value] of Object.entries(patch)) {
    if (value === undefined || value === null || value === "") delete next[key];
    else next[key] = String(value);
  }
  return next;
}

const ADDRESS_LATER = 300;
const listeners = new Set();
let current = typeof location === "undefined" ? {} : parse(location.search);

export function get() {
  return current;
}

export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function publish(next) {
  const before = current;
  const changed = new Set(KEYS.filter(key => before[key] !== next[key]));
  if (!changed.size) return;
  current = next;
  for (const listener of listeners) listener(current, changed);
}

// A choice is a step in the browser's history; a default that was filled in is not.
export function set(patch, { fill = false } = {}) {
  const next = apply(current, patch);
  if (format(next) === format(current)) return;
  write(fill ? "replaceState" : "pushState", next);
  publish(next);
}

// Fills in what nobody chose. The address says so once the page is drawn: a browser takes long to change it.
export function assume(patch) {
  publish(apply(current, patch));
  setTimeout(() => write("replaceState", current), ADDRESS_LATER);
}

function write(how, state) {
  try {
    history[how]({ rolloutTraces: true }, "", location.pathname + format(state) + location.hash);
  } catch {
    /* a page in a sandboxed frame may not change its address */
  }
}

export function href(patch) {
  return (typeof location === "undefined" ? "" : location.pathname) + (format(apply(current, patch)) || "?");
}

// What an `a` needs to lead to another state without loading the page anew.
export const link = patch => ({
  href: href(patch),
  onclick: event => {
    event.preventDefault();
    set(patch);
  },
});

if (typeof window !== "undefined") window.addEventListener("popstate", () => publish(parse(location.search)));

// What a function of a page is asked about: the split of a run, or one step of it.
export const placeOf = ({ project, run, split }) => ({ project, run, split });
export const placeAtStep = now => ({ ...placeOf(now), step: now.step === undefined ? null : Number(now.step) });

// Some values of the address as one text, to see whether they changed.
export const valuesOf = (now, keys) => JSON.stringify(keys.map(key => now[key] ?? null));
