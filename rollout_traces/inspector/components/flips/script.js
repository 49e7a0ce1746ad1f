// Flips: which prompts two evaluations, or two runs, solved differently, and every prompt at every evaluation.

import { block, button, choice, ghost, h, notice, replace, scrolling, select, table } from "../../lib/dom.js";
import { number, pValue, percent, plural, signed } from "../../lib/format.js";
import { promptLink, toExplain, toRollout } from "../../lib/going.js";
import { catalog, mounted, runOf, setPopulation } from "../../lib/pages.js";
import { latest } from "../../lib/remote.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { queries } from "../explain/queries.js";

const OUTCOMES = { lost: "lost", won: "won", unsure: "not sure", kept: "solved as often", never: "solved in neither" };
const NOTHING_SHOWN = ["kept", "never"];

let call;
let root;
let shownFor = "";
const hidden = new Set(NOTHING_SHOWN);
const newest = latest();
const newestGrid = latest();
const slot = () => root.querySelector(".rt-flips");

export function mount(element, server) {
  [root, call] = mounted("flips", element, server, { update });
}

// The evaluation split in sight: the one that is chosen, else the run's first.
function evaluation(now) {
  const splits = (runOf(now)?.splits || []).map(split => split.name);
  return now.split?.startsWith("eval") ? now.split : splits.find(name => name.startsWith("eval")) || "";
}

function update(now) {
  const wanted = JSON.stringify([now.project, now.run, evaluation(now), now.other ?? null, now.evals ?? null]);
  if (wanted !== shownFor) {
    shownFor = wanted;
    load(now);
  }
}

function load(now) {
  const [first, second] = (now.evals || ":").split(":");
  const asked = {
    project: now.project,
    run: now.run,
    split: evaluation(now),
    other: now.other && now.other !== now.run ? now.other : "",
  };
  const gridSlot = h("section.rt-run-block#flip-grid", h("div.rt-loading", "…"));
  setPopulation("flips");
  replace(slot(), h("div.rt-loading", "Matching prompts…"));
  newest(
    call("flip_list", { ...asked, first, second }),
    answer => {
      setPopulation(
        "flips",
        h("b", `${plural(answer.n_prompts, "prompt")} in both`),
        ` · solved by ${inert(answer.solved_by)}`,
        answer.keyless ? ` · ${number(answer.keyless)} rollouts without a prompt key are left out` : "",
      );
      replace(
        slot(),
        pickers(answer, now),
        summary(answer, { ...asked, first: answer.first, second: answer.second }),
        changed(answer),
        gridSlot,
      );
    },
    error => replace(slot(), pickers(null, now), notice("info", "No evaluations to match", error.message), gridSlot),
  );
  newestGrid(
    call("grid", asked),
    answer => replace(gridSlot, grid(answer)),
    () => replace(gridSlot),
  );
}

function pickers(answer, now) {
  const stepsOf = run => runOf({ run })?.splits.find(split => split.name === evaluation(now))?.steps || [];
  const named = (run, step) =>
    [...new Set([step, ...stepsOf(run)])].sort((a, b) => a - b).map(each => [each, `step ${number(each)}`]);
  const [first, second] = answer ? [answer.first, answer.second] : (now.evals || "").split(":").map(Number);
  const other = now.other || now.run;
  const isKnown = answer || now.evals;
  const set = (first, second) => state.set({ evals: `${first}:${second}` });
  return h(
    "div.rt-flip-pickers",
    h(
      "span",
      h("b", "A"),
      h("span.rt-soft", inert(now.run)),
      isKnown && choice("evaluation", first, named(now.run, first), step => set(step, second), "flips-first"),
    ),
    h(
      "span",
      h("b", "B"),
      select(
        catalog.runs.map(run => [run.name, run.name === now.run ? "the same run" : run.label]),
        other,
        run => state.set({ other: run === now.run ? null : run, evals: null }),
        { "aria-label": "Run of B", testid: "flips-other" },
      ),
      isKnown && choice("evaluation", second, named(other, second), step => set(first, step), "flips-second"),
    ),
    answer &&
      button(
        "explain",
        () =>
          toExplain({
            split: evaluation(now),
            step: answer.second,
            run: answer.other,
            against: new URLSearchParams({ run: answer.run, steps: String(answer.first) }).toString(),
          }),
        { title: "What differs between the two evaluations", testid: "flips-explain" },
      ),
  );
}

function summary(answer, asked) {
  const counted = h("div");
  const score = (value, error) => `${percent(value)} ± ${percent(error)}`;
  return h(
    "div.rt-run-block#flip-summary",
    h(
      "p",
      h("b", `${score(answer.score_a, answer.error_a)} to ${score(answer.score_b, answer.error_b)}`),
      ` · ${signed(Math.round(answer.difference * 1000) / 10)} points on the shared prompts, 95% from ${signed(Math.round(answer.low * 1000) / 10)} to ${signed(Math.round(answer.high * 1000) / 10)}`,
      answer.p === null ? "" : `; exact McNemar p ${pValue(answer.p)}`,
      " ",
      queries(counted, () => call("flip_figures", asked)),
    ),
    counted,
    h.each(
      "div.rt-flip-counts",
      Object.entries(OUTCOMES).filter(([name]) => answer.counts[name]),
      ([name, title]) =>
        h(
          "button",
          {
            class: `rt-chip rt-flip-${name}`,
            "aria-pressed": String(!hidden.has(name)),
            testid: `count-${name}`,
            title: "Shows or hides them",
            onclick: event => {
              if (!hidden.delete(name)) hidden.add(name);
              event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(name)));
              root.querySelector("[data-testid='flips-changed']")?.replaceWith(changed(answer));
            },
          },
          `${number(answer.counts[name])} ${title}`,
        ),
    ),
    answer.remarks.map(remark => h("p.rt-soft", inert(remark))),
  );
}

function changed(answer) {
  const rows = answer.prompts.filter(each => !hidden.has(each.outcome));
  const named = ["section.rt-run-block#flips-changed", "Prompts", `${number(rows.length)} shown, lost first`];
  if (!rows.length) return block(...named, h("p.rt-soft", "None. The chips above show others."));
  return block(
    ...named,
    scrolling(
      "Prompts that flipped",
      table({ class: "rt-prompts-table" }, ["", "prompt", "A", "B", "what else differs", ""], rows, each =>
        h(
          "tr#flip",
          h("td", h("span", { class: `rt-chip rt-flip-${each.outcome}` }, OUTCOMES[each.outcome])),
          h("td.rt-prompt-cell", promptLink(each, 120)),
          h("td", `${each.solved_a} of ${each.trials_a}`),
          h("td", `${each.solved_b} of ${each.trials_b}`),
          h("td.rt-flip-differs", inert(differences(each.differs))),
          h("td", sideBySide(...answer.cells[answer.prompts.indexOf(each)])),
        ),
      ),
      ".rt-flip-scroll",
    ),
  );
}

const differences = differs =>
  Object.entries(differs)
    .map(([name, [a, b]]) => `${name}: ${said(a)} to ${said(b)}`)
    .join("; ");

function said(value) {
  if (Array.isArray(value)) return value.join(", ") || "none";
  return value === null || value === undefined ? "unknown" : number(value);
}

function beside(a, b) {
  state.set({ page: "compare", a, b, at: "difference" });
}

// A row a prompt, a column an evaluation; a cell is green for the share that was solved and opens it beside the one before.
function grid(answer) {
  const several = new Set(answer.evaluations.map(([run]) => run)).size > 1;
  const title = ([run, step]) => (several ? `${run}, step ${number(step)}` : `step ${number(step)}`);
  return [
    h(
      "h2",
      "Prompt by evaluation",
      h(
        "span.rt-faint",
        ` ${plural(answer.n_prompts, "prompt")}, those that flipped most first${answer.n_prompts > answer.rows.length ? `, ${number(answer.rows.length)} shown` : ""}; ${answer.n_evaluations > answer.evaluations.length ? `the last ${answer.evaluations.length} of ${number(answer.n_evaluations)} evaluations; ` : ""}a cell opens the prompt beside the evaluation before; a line above it: more answers solved than there, below: fewer; in italics: no answer kept`,
      ),
    ),
    scrolling(
      "Prompt by evaluation",
      table(
        { class: "rt-flip-grid" },
        [
          "prompt",
          answer.evaluations.map(each =>
            h(
              "th",
              { title: inert(title(each)) },
              number(each[1]),
              several ? h("span.rt-grid-run.rt-ellipsis", inert(each[0])) : null,
            ),
          ),
          h("th", { title: "How often it went from mostly solved to mostly not, or back" }, "flips"),
        ],
        answer.rows,
        row =>
          h(
            "tr",
            h("th", promptLink(row, 0)),
            row.cells.map((cell, at) => h("td", cell ? gridCell(row, at, answer, title) : null)),
            h("td.rt-num", number(row.flips)),
          ),
      ),
      ".rt-flip-scroll",
    ),
  ];
}

function gridCell(row, at, answer, title) {
  const cell = row.cells[at];
  const share = shareOf(cell);
  const before = row.cells
    .slice(0, at)
    .map((each, i) => ({ each, i }))
    .filter(({ each }) => each && anyOf(each))
    .pop();
  const pair = before ? opened(before.each, cell) : [];
  const both = pair.length && pair.every(Boolean);
  const mine = anyOf(cell);
  const last = row.cells.slice(0, at).findLast(Boolean);
  const fell = last && share < shareOf(last);
  const rose = last && share > shareOf(last);
  const why = !mine
    ? "; none was kept"
    : both
      ? `; opens it beside ${title(answer.evaluations[before.i])}`
      : "; opens it";
  const shown = cell.trials > 1 ? `${cell.solved}/${cell.trials}` : cell.solved ? "✓" : "✕";
  return h(
    "button#grid-cell",
    {
      class: `rt-grid-cell${fell ? " rt-fell" : rose ? " rt-rose" : ""}`,
      style: { "--solved": `${Math.round(share * 100)}%` },
      disabled: !mine,
      title: inert(
        `${row.prompt_key}, ${title(answer.evaluations[at])}: ${cell.solved} of ${cell.trials} solved${why}`,
      ),
      "aria-label": inert(`${shown} solved, ${row.prompt_key}, ${title(answer.evaluations[at])}`),
      onclick: () =>
        both
          ? beside(...pair)
          : toRollout({ id: mine }, { run: answer.evaluations[at][0], split: evaluation(state.get()) }),
    },
    shown,
  );
}

const shareOf = cell => cell.solved / cell.trials;
const anyOf = cell => cell.solved_id || cell.failed_id;

// One rollout of each evaluation: where the share fell or rose, a solved one against a failed one.
function opened(before, cell) {
  const by = shareOf(cell) - shareOf(before);
  if (!by) return [anyOf(before), anyOf(cell)];
  return by > 0 ? [before.failed_id, cell.solved_id] : [before.solved_id, cell.failed_id];
}

function sideBySide(a, b) {
  const pair = opened(a, b);
  if (pair.every(Boolean)) return ghost("side by side", () => beside(...pair), { testid: "flip-open" });
  const by = shareOf(b) - shareOf(a);
  const [inA, inB] = by ? (by > 0 ? ["failed ", "solved "] : ["solved ", "failed "]) : ["", ""];
  return h("span.rt-faint", pair[0] ? `no ${inB}answer of B kept` : `no ${inA}answer of A kept`);
}
