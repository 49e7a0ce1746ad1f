// The frame around the pages: what is looked at (project, run, split), which page, theme, help, liveness.

import { button, ghost, h, replace, select } from "../../lib/dom.js";
import { number, plural } from "../../lib/format.js";
import { listenToKeys, showHelp, toggleTheme } from "../../lib/frame.js";
import { shortcut } from "../../lib/keyboard.js";
import { catalog, onPopulation, onceReady, runOf, showPopulationOf, splitOf, whenReady } from "../../lib/pages.js";
import { remote, soon } from "../../lib/remote.js";
import { open, session } from "../../lib/session.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { hideTokenCard } from "../transcript/token_card.js";
import { placeIncidents, updateIncidents } from "./incident_bar.js";
import { signedIn } from "./sign_in.js";

const PULSE = 2000;
const settings = window.rolloutTraces;

let call = null;
let root = null;
let shown = null;
let untold = new Set();
let loadedProject;
let openSeen = null;
let mayMove = false;
let insteadOf = {}; // the split that is shown because the one that was asked for is not there

export async function mount(element, server) {
  call = remote(server);
  root = element;
  const closed = await open();
  if (closed) await signedIn(element, closed);
  element.querySelector(".rt-brand").addEventListener("click", follow);
  onPopulation(show => {
    const node = root.querySelector(".rt-population");
    replace(node, show);
    node.title = node.textContent;
  });
  drawTools();
  listenToKeys();
  shortcuts();
  state.subscribe((now, changed) => refresh(changed));
  await refresh(new Set(state.KEYS));
  setInterval(pulse, PULSE);
}

function follow(event) {
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  event.preventDefault();
  state.set(state.parse(new URL(event.currentTarget.href).search));
}

// What changed stays untold while a catalog is read or defaults are filled in: the page is told of all of it.
async function refresh(changed) {
  for (const key of changed) untold.add(key);
  const now = state.get();
  if (loadedProject === undefined || loadedProject !== (now.project || null)) {
    let ahead;
    onceReady(now.page || opens(now), page => {
      ahead = page.askAhead?.(now);
    });
    if (!(await loadCatalog(now.project))) return;
    root.querySelector(".rt-live").dataset.state = "idle";
    await soon(ahead);
    if (state.get().project !== now.project) return;
  }
  if (fillDefaults()) return;
  drawPickers();
  drawTabs();
  linkToTrackio();
  drawLive();
  await showPage();
}

// False where it cannot be read, or where another project was opened meanwhile: its own answer counts then.
async function loadCatalog(project) {
  const isLeft = () => (state.get().project || null) !== (project || null);
  try {
    let answer = await call("catalog", { project });
    while (answer.indexing && !isLeft()) {
      drawIndexing(project, answer.indexing);
      answer = await call("catalog", { project });
    }
    if (isLeft()) return false;
    root.querySelector(".rt-indexing")?.remove();
    Object.assign(catalog, answer, { error: null });
  } catch (error) {
    if (isLeft()) return false;
    if (error.kind === "offline") offline(error);
    root.querySelector(".rt-indexing")?.remove();
    if (error.kind === "offline") return false;
    Object.assign(catalog, { project: null, runs: [], error: error.message });
    catalog.projects = (await call("catalog", {})).projects;
  }
  loadedProject = catalog.error ? null : project || null;
  return true;
}

// The first look at a large project: its traces are indexed once.
function drawIndexing(project, [done, total]) {
  let node = root.querySelector(".rt-indexing");
  if (!node) {
    node = h("div.rt-indexing#indexing", { role: "status" });
    root.append(node);
  }
  replace(
    node,
    h("b", `Indexing ${project}`),
    h("progress", { max: Math.max(total, 1), value: done }),
    h("span.rt-faint", total ? `${number(done)} of ${plural(total, "trace")}, once` : "…"),
  );
}

// Fills in what the address leaves open; true when that changed it.
function fillDefaults() {
  const now = state.get();
  const patch = {};
  if (catalog.error) Object.assign(patch, { project: null, page: "projects" });
  else if (!now.project && catalog.projects.length === 1 && now.page !== "projects")
    patch.project = catalog.projects[0].name;
  else if (!now.project) patch.page = "projects";
  else {
    const run = catalog.runs.find(each => each.name === now.run) || (!now.run && catalog.runs[0]);
    if (run && !now.run) patch.run = run.name;
    if (run && run.splits.length && !splitOf({ ...now, run: run.name })) {
      patch.split = run.splits[0].name;
      if (now.split) insteadOf = { run, split: patch.split, missing: now.split };
    }
    if (!settings.pages.some(page => page.name === now.page) && now.page !== "projects") patch.page = opens(now);
  }
  const before = state.format(now);
  if (state.format(state.apply(now, patch)) === before) return false;
  state.assume(patch);
  return true;
}

// A run opened without a place in it opens on its overview.
function opens(now) {
  return ["step", "group", "id", "where", "text", "sort", "follow"].some(key => now[key] !== undefined)
    ? "rollouts"
    : "run";
}

async function showPage() {
  const name = state.get().page;
  const page = await whenReady(name);
  const now = state.get();
  if (now.page !== name) return; // another one was opened meanwhile
  showPopulationOf(name);
  const named = settings.pages.find(page => page.name === name)?.title || "Projects";
  const place = name === "projects" ? [] : [now.step && `step ${now.step}`, now.run];
  document.title = [named, ...place, "rollout traces"].filter(Boolean).join(" · ");
  placeIncidents(root, now);
  const changed = shown === page ? untold : new Set(state.KEYS);
  untold = new Set();
  if (shown !== page) {
    shown?.element.classList.remove("rt-active");
    hideTokenCard();
    page.element.classList.add("rt-active");
    shown = page;
  }
  // incidents take a diagnosis of the run: what the page asks for goes first
  Promise.resolve(page.update(now, changed)).finally(() => updateIncidents(root, call, state.get()));
  if (state.get() !== now) for (const key of changed) untold.add(key); // it filled something in first, and is asked again
}

function picker(key, named) {
  const value = state.get()[key];
  const options = named.map(({ name, label = name }) => [name, label]);
  if (value !== undefined && !named.some(({ name }) => name === value)) options.unshift([value, `${value}: not there`]);
  const title = key[0].toUpperCase() + key.slice(1);
  const props = { "aria-label": title, title: `${title}: ${value || ""}`, testid: `${key}-select` };
  return select(options, value, chosen => state.set({ [key]: chosen }), props);
}

function drawPickers() {
  const now = state.get();
  const slot = root.querySelector(".rt-pickers");
  const inProject = now.project && now.page !== "projects";
  const run = inProject ? catalog.runs.find(each => each.name === now.run) : null;
  drawNote(run);
  if (!inProject) return replace(slot);
  const below = (key, named) => (named?.length ? [h("span.rt-slash", "/"), picker(key, named)] : null);
  return replace(slot, picker("project", catalog.projects), below("run", catalog.runs), below("split", run?.splits));
}

// What holds for every page of a run: its ids were encoded again, its population is unknown.
function drawNote(run) {
  const node = root.querySelector(".rt-run-note");
  const isInstead = run && run.name === insteadOf.run?.name && state.get().split === insteadOf.split;
  const note = isInstead ? `No split ${insteadOf.missing} in this run: ${insteadOf.split} is shown.` : run?.note || "";
  replace(node, inert(note));
  node.title = note;
}

function drawTabs() {
  const now = state.get();
  const without = [...withoutPages(now), "projects"].filter(name => name !== now.page);
  const tabs = !now.project
    ? []
    : settings.pages
        .filter(page => !without.includes(page.name))
        .map(page =>
          h(
            "a",
            {
              href: state.href({ page: page.name }),
              title: `${page.title} (${page.key})`,
              "data-testid": `tab-${page.name}`,
              "aria-current": page.name === now.page ? "page" : null,
              onclick: follow,
            },
            page.title,
          ),
        );
  const bar = root.querySelector(".rt-tabs");
  replace(bar, tabs);
  requestAnimationFrame(() => showCurrent(bar));
}

// Pages that have nothing to show: of the run, or of any run where there is none of that name.
function withoutPages(now) {
  const [first, ...others] = runOf(now) ? [runOf(now)] : catalog.runs;
  return (first?.without || []).filter(name => others.every(run => run.without.includes(name)));
}

// Where the tabs are wider than the window (a phone), the page that is open is among those in sight.
function showCurrent(bar) {
  const current = bar.querySelector("[aria-current]");
  if (current) bar.scrollLeft = current.offsetLeft - bar.offsetLeft - (bar.clientWidth - current.offsetWidth) / 2;
}

function drawTools() {
  replace(
    root.querySelector(".rt-top-tools"),
    session.dashboard &&
      h(
        "a.rt-ghost.rt-wide-only#trackio-link",
        {
          href: trackioAddress(),
          target: "_blank",
          rel: "noopener",
          title: "Trackio's own dashboard; of a rollout its run's traces, of which no single one has an address",
        },
        "Trackio",
      ),
    button(
      "agent",
      () => {
        mayMove = !mayMove;
        drawTools();
      },
      {
        class: "rt-ghost rt-wide-only",
        "aria-pressed": String(mayMove),
        title: "An agent may move this page (rollout-traces mcp --inspector)",
        testid: "may-move",
      },
    ),
    ghost("◐", toggleTheme, { title: "Light or dark (t)", "aria-label": "Light or dark", testid: "theme" }),
    ghost("?", showHelp, { title: "Keyboard (?)", "aria-label": "Keyboard help", testid: "help-button" }),
  );
}

function linkToTrackio() {
  root.querySelector("[data-testid='trackio-link']")?.setAttribute("href", trackioAddress());
}

// Trackio's page of what is shown here, as near as it has an address: a run's traces, else the project.
function trackioAddress() {
  const now = state.get();
  if (!now.project) return session.dashboard;
  const run = now.page === "rollouts" && runOf(now);
  const asked = new URLSearchParams({ project: now.project, ...(run ? { run_ids: run.id } : {}) });
  return `${session.dashboard}${run ? "traces" : ""}?${asked}`;
}

function shortcuts() {
  for (const page of settings.pages) {
    if (page.key)
      shortcut(page.key, page.title, () => state.get().project && state.set({ page: page.name }), { section: "Pages" });
  }
}

// Where an agent asked this page to go; it goes there only where its reader switched that on.
function moveWhereAsked(open) {
  if (openSeen === null) openSeen = open.asked;
  if (open.asked === openSeen) return;
  openSeen = open.asked;
  if (mayMove) state.set(state.parse(new URLSearchParams(open.state).toString()));
}

// A live run: asks whether anything was added, and tells the page that is shown.
async function pulse() {
  const now = state.get();
  if (document.hidden || loadedProject !== (now.project || null)) return;
  try {
    if (!now.project) return await findProjects();
    const news = await call("pulse", { project: now.project, version: catalog.version });
    if (state.get().project !== now.project) return;
    moveWhereAsked(news.open);
    const live = root.querySelector(".rt-live");
    const before = JSON.stringify(runOf(now));
    if (news.changed) {
      Object.assign(catalog, news.catalog);
      if (!fillDefaults()) {
        drawPickers();
        updateIncidents(root, call, state.get(), true);
        shown?.news?.(state.get());
      }
    }
    if (JSON.stringify(runOf(state.get())) !== before) {
      live.dataset.state = "live";
      live.dataset.since = Date.now();
    } else if (live.dataset.state === "offline" || Date.now() - Number(live.dataset.since || 0) > 15000)
      live.dataset.state = "idle";
    drawLive();
  } catch (error) {
    offline(error);
  }
}

// Where no project is open: one that was begun meanwhile is listed, and opened where it is the first.
async function findProjects() {
  const { projects } = await call("catalog", {});
  root.querySelector(".rt-live").dataset.state = "idle";
  drawLive();
  const isFirst = !catalog.projects.length;
  if (state.get().project || projects.length === catalog.projects.length) return;
  catalog.projects = projects;
  if (isFirst && projects.length === 1) state.set({ project: projects[0].name, page: null });
  else shown?.news?.(state.get());
}

function drawLive() {
  const live = root.querySelector(".rt-live");
  const now = state.get();
  if (live.dataset.state === "offline") return;
  if (!now.project || now.page === "projects") return replace(live);
  const split = splitOf(now);
  return replace(
    live,
    h("i"),
    live.dataset.state === "live" ? "live" : "up to date",
    split ? ` · ${plural(split.steps.length, "step")}, ${plural(split.n_traced, "rollout")} kept in this split` : "",
  );
}

function offline(error) {
  const live = root.querySelector(".rt-live");
  live.dataset.state = "offline";
  replace(live, h("i"), error.message);
}
