// The funnel of a step and of the run, and the reward functions by name.

import { block, ghost, h, scrolling, table } from "../../lib/dom.js";
import { number, percent, plural, seconds } from "../../lib/format.js";
import { toKept, toRows } from "../../lib/going.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { lineChart } from "../charts/series_chart.js";

const CLEAN = { flag: null, group: null, sample: null, id: null };

// The kept rollouts of a filter under Rollouts, all of them under Explore.
function links(where, step) {
  return [
    ghost("kept", () => toKept(where, { ...CLEAN, scope: step === null ? "all" : null }), {
      title: "The kept ones, under Rollouts",
      testid: "funnel-rollouts",
    }),
    ghost("all", () => toRows(step === null ? where : `(${where}) and step = ${step}`, CLEAN), {
      title: "All of them, kept or not, under Explore",
      testid: "funnel-all",
    }),
  ];
}

export function funnelTable(answer) {
  const cells = (counted, stage, step) => [
    h("td.rt-num", counted.n === null ? "\u2013" : number(counted.n)),
    h("td.rt-num.rt-soft", counted.tokens === null ? "" : percent(counted.tokens)),
    h(
      "td.rt-funnel-bar",
      counted.tokens === null ? null : h("i", { style: { "--share": `${counted.tokens * 100}%` } }),
    ),
    h("td", counted.n && stage.where ? links(stage.where, step) : null),
  ];
  return block(
    "section.rt-lanes-block#funnel",
    "Funnel",
    "rollouts of all there were, and their share of the sampled tokens; one rollout can be in several lines",
    scrolling(
      "Funnel",
      table(
        null,
        [
          "",
          h("th", { colspan: 4 }, `step ${number(answer.step)}`),
          h("th", { colspan: 4 }, `the run, ${plural(answer.n_steps, "step")}`),
        ],
        answer.stages,
        stage =>
          h(
            "tr#funnel-stage",
            { class: stage.of ? "rt-funnel-reason" : "", dataset: { stage: stage.name } },
            h("td", { title: stage.where || "" }, inert(stage.title)),
            stage.unobserved
              ? h("td.rt-faint.rt-funnel-unobserved", { colspan: 8 }, `unobserved: ${stage.unobserved}`)
              : [cells(stage.step, stage, answer.step), cells(stage.run, stage, null)],
          ),
      ),
      ".rt-lanes-table.rt-scroll",
    ),
  );
}

export function functionsTable(answer, step) {
  const at = answer.steps.indexOf(step);
  const onStep = picked => state.set({ step: picked });
  const curve = (each, field, title, show) => {
    const values = each.steps.map(s => s[field]);
    const drawing = { width: 150, height: 24, step, bare: true, label: `${each.name}, ${title}`, show, onStep };
    return h("td", values.some(value => value !== null) && lineChart(answer.steps, values, drawing));
  };
  const time = value => (value === null ? h("span.rt-faint", "unobserved") : seconds(value));
  const share = value => (value === null ? "\u2013" : percent(value));
  const row = each => {
    const here = each.steps[at] || each.whole;
    return h(
      "tr#reward-function",
      { dataset: { name: each.name } },
      h("td.rt-mono", inert(each.name)),
      h("td.rt-num", time(here.seconds)),
      h("td.rt-num", time(each.whole.seconds)),
      curve(each, "seconds", "seconds a step", seconds),
      h(
        "td",
        { class: `rt-num ${here.no_value ? "rt-error-text" : ""}` },
        here.no_value === null ? "\u2013" : `${number(here.no_value)} of ${number(here.rollouts)}`,
        here.no_value && answer.steps[at] !== undefined ? links(`${name(each.column)} is null`, step) : null,
      ),
      h("td.rt-num", share(here.zeros)),
      curve(each, "zeros", "share of zeros", percent),
      h("td.rt-num", share(here.one_value)),
      h("td.rt-num", share(here.outliers)),
    );
  };
  return block(
    "section.rt-lanes-block#reward-functions",
    "Reward functions",
    "the slowest first; values at this step, lines over the steps",
    answer.unobserved.map(text => h("p.rt-soft", text)),
    answer.functions.length > 0 &&
      scrolling(
        "Reward functions",
        table(
          null,
          [
            ["function", ""],
            ["time", "seconds at this step; a call for several rollouts counts once"],
            ["in all", "seconds over the steps shown"],
            ["", ""],
            ["gave none", "rollouts without a value of it, as where it raised"],
            ["zeros", "share of its values that are 0"],
            ["", ""],
            ["one value", "share of its most frequent value"],
            ["outliers", "share of values more than 5 median absolute deviations from the step's median"],
          ].map(([text, title]) => h("th", { title }, text)),
          answer.functions.map(row),
        ),
        ".rt-lanes-table.rt-scroll",
      ),
  );
}

const name = column => (/^[\w/]+$/.test(column) ? column : `\`${column.replaceAll("`", "``")}\``);
