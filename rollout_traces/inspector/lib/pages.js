import { h } from "./dom.js";
import { number, plural } from "./format.js";
import { latest, remote } from "./remote.js";

// Pages announce themselves here; the shell shows the one that the address names.

const pages = new Map();
const waiting = new Map();

export function register(name, page) {
  pages.set(name, page);
  for (const resolve of waiting.get(name) || []) resolve(page);
  waiting.delete(name);
}

// For the script of a page: its view and what asks its functions. page: {update(now, changed); news(now), where new rows matter}.
export function mounted(name, element, server, page) {
  const root = element.closest(".rt-view") || element;
  register(name, { element: root, ...page });
  return [root, remote(server)];
}

export function whenReady(name) {
  if (pages.has(name)) return Promise.resolve(pages.get(name));
  return new Promise(resolve => waiting.set(name, [...(waiting.get(name) || []), resolve]));
}

// At once where the page is there.
export function onceReady(name, work) {
  if (pages.has(name)) work(pages.get(name));
  else whenReady(name).then(work);
}

// What the shell knows about the data: projects, runs, splits, steps. Pages read it and are told of news.
export const catalog = { projects: [], project: null, runs: [] };

export function runOf(state) {
  return catalog.runs.find(run => run.name === state.run) || null;
}

export function splitOf(state) {
  return runOf(state)?.splits.find(split => split.name === state.split) || null;
}

// The sentence that every page owes: n of m rollouts kept, chosen by what. Each page has its own, so that none shows
// another's.
const populations = new Map();
let drawPopulation = () => {};
let shownPage = null;

export function onPopulation(draw) {
  drawPopulation = draw;
}

export function showPopulationOf(page) {
  shownPage = page;
  drawPopulation(populations.get(page) || []);
}

// Without parts: nothing is known yet, or any more.
export function setPopulation(page, ...parts) {
  populations.set(page, parts);
  if (page === shownPage) drawPopulation(parts);
}

// For a page of one step: asks for its population. Nothing is known until the newest answer is there.
const newestOf = new Map();

export function askPopulation(page, call, asked) {
  if (!newestOf.has(page)) newestOf.set(page, latest());
  setPopulation(page);
  return newestOf.get(page)(
    call("population", asked),
    found => setPopulation(page, kept(found, ` at step ${number(found.step)}`)),
    () => setPopulation(page),
  );
}

// counts: {n_traced, n_rows or null, chosen_by or null} of a step or of all of them; notes: null for none.
export function kept({ n_traced, n_rows, chosen_by }, where, ...notes) {
  return [
    h("b", n_rows ? `${number(n_traced)} of ${number(n_rows)} rollouts kept` : `${plural(n_traced, "rollout")} kept`),
    where,
    notes.filter(Boolean).map(note => ` · ${note}`),
    chosen_by ? ` · chosen: ${chosen_by}` : "",
  ];
}

// Flags that are properties of the run and split shown: name -> [[first, last or null]], the steps where rows wear it;
// null while that is not known: none is coloured then.
let usual = null;
const usualListeners = new Set();

export function onUsual(listener) {
  usualListeners.add(listener);
}

export function setUsual(found) {
  usual = found;
  for (const listener of usualListeners) listener();
}

// A row of this step carries the flag and does not wear it.
export function isUsual(flag, step) {
  if (!usual) return true;
  const risen = usual[flag];
  return Boolean(risen) && !risen.some(([first, last]) => first <= step && (last === null || step <= last));
}
