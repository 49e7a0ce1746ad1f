// The projects at hand, when none was named.

import { h, notice, replace } from "../../lib/dom.js";
import { number, plural } from "../../lib/format.js";
import { catalog, mounted, setPopulation } from "../../lib/pages.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { parted, weightFor } from "../charts/scale.js";
import { lineChart } from "../charts/series_chart.js";

let call;
let root;

export function mount(element, server) {
  [root, call] = mounted("projects", element, server, { update, news: update });
}

async function update() {
  const slot = root.querySelector(".rt-projects");
  setPopulation("projects", "Pick a project.");
  let found;
  try {
    found = await call("places");
  } catch (error) {
    replace(slot, notice("error", "The projects could not be listed", error.message));
    return;
  }
  if (!found.projects.length) {
    replace(
      slot,
      notice(
        "info",
        "No project here yet",
        ["Looked in ", h("code", found.where), "."],
        [
          "Log to one: ",
          h("code", "RolloutLogger(project=…, tokenizer=…, max_rollout_traces_per_step=32)"),
          ", or try ",
          h("code", "rollout-traces show --example"),
          ".",
        ],
      ),
    );
    return;
  }
  const cards = found.projects.map(name =>
    h(
      "a.rt-project#project-card",
      {
        href: state.href({ page: null, project: name }),
        onclick: event => {
          if (event.metaKey || event.ctrlKey || event.button) return;
          event.preventDefault();
          state.set({ project: name, page: "run" });
        },
      },
      h("h2", name),
      h("div.rt-soft", "…"),
    ),
  );
  replace(
    slot,
    catalog.error ? notice("error", "That project cannot be opened", catalog.error) : null,
    h("div.rt-projects-in", h("h1", "Projects"), h("p.rt-faint", found.where), h("div.rt-project-grid", cards)),
  );
  const shown = [];
  for (const [at, name] of found.projects.entries()) {
    if (state.get().page !== "projects") return; // the one that was opened waits for none of the others
    const info = await call("project", { project: name }).catch(error => ({ error: error.message }));
    const facts = cards[at].lastChild;
    if (info.error) replace(facts, info.error);
    else if (!info.n_runs) replace(facts, "no runs yet");
    else {
      replace(facts, described(info));
      shown.push([facts, info]);
    }
  }
  for (const [facts, info] of shown)
    if (state.get().page === "projects") facts.append(...(await open(info).catch(() => [])));
}

// What is open in the newest run and not muted; asked for when every card is there, because it takes a look at the whole run.
async function open({ name, last_run, split }) {
  const { incidents } = await call("incident_bar", { project: name, run: last_run, split });
  const listed = incidents.filter(each => !each.muted);
  if (!listed.length) return [];
  return [
    h(
      "div#project-incidents",
      { title: listed.map(each => inert(each.sentence)).join("\n") },
      h("span", { class: `rt-chip rt-chip-${listed[0].severity}` }, `${plural(listed.length, "open incident")}`),
      h("span.rt-soft.rt-project-incident", inert(listed[0].sentence)),
    ),
  ];
}

function described(info) {
  const last = info.last_trace || info.started;
  return [
    h(
      "div",
      `${plural(info.n_runs, "run")} · ${plural(info.n_traces, "rollout")} kept${info.n_rollouts >= info.n_traces ? ` of ${number(info.n_rollouts)}` : ""}`,
    ),
    h(
      "div",
      h("b.rt-ellipsis.rt-project-run", { title: info.last_run }, info.last_run),
      `, step ${number(info.last_step)}`,
      info.resumed_at.length > 0 && h("span#project-resumed", `, resumed at ${info.resumed_at.map(number).join(", ")}`),
      last ? h("span.rt-faint", { title: last }, ` · ${ago(last)}`) : null,
    ),
    info.reward
      ? h(
          "div.rt-project-reward",
          sparkline(info.reward),
          h("span.rt-faint", "reward "),
          h("b", number(parted(info.reward)[0].findLast(value => value !== null))),
        )
      : h("div.rt-faint", "no reward was logged"),
  ];
}

// A line without axes; smoothed where it is long, its noise light behind it.
function sparkline({ steps, values, superseded }) {
  return lineChart(steps, values, {
    width: 150,
    height: 36,
    weight: weightFor(null, steps.length),
    bare: true,
    superseded: superseded || [],
    label: "mean reward over the steps of the newest run",
  });
}

// How long ago, in the largest unit that fits.
export function ago(when, now = Date.now()) {
  const seconds = (now - Date.parse(/[zZ]|[+-]\d\d:?\d\d$/.test(when) ? when : `${when}Z`)) / 1000;
  if (!Number.isFinite(seconds)) return "";
  for (const [unit, size] of Object.entries({ day: 86400, hour: 3600, minute: 60 }))
    if (seconds >= size) return `${plural(Math.floor(seconds / size), unit)} ago`;
  return "just now";
}
