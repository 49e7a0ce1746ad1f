// One prompt: its rewards and lengths over the steps, a line a run and split; each visit opens its rollouts.

import { block, button, ghost, h, scrolling, table } from "../../lib/dom.js";
import { toExplain, toRollout } from "../../lib/going.js";
import { rewardColour } from "../../lib/colour.js";
import { number, percent, plural } from "../../lib/format.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { isLog, logButton } from "../charts/axis_controls.js";
import { besides, weightFor } from "../charts/scale.js";
import { legend, seriesChart } from "../charts/series_chart.js";

const MOST_LISTED = 400;

export function onePrompt(one, now, width) {
  const places = [...one.places].sort((a, b) => Number(b.run === now.run) - Number(a.run === now.run));
  const several = one.places.length > 1;
  const name = place =>
    new Set(one.places.map(each => each.run)).size > 1 ? `${place.run}, ${place.split}` : place.split;
  const series = value =>
    one.places.map(place => ({
      name: name(place),
      steps: place.visits.map(visit => visit.step),
      values: place.visits.map(value),
    }));
  const { style, wide } = besides(width, 450, 2);
  const chart = (key, title, value, show) => {
    const drawn = series(value);
    const values = drawn.flatMap(each => each.values);
    if (!values.some(Number.isFinite)) return null;
    return h(
      "figure.rt-run-card#prompt-chart",
      h("figcaption", h("span", title), logButton(now, key, values, title)),
      seriesChart(drawn, {
        width: wide,
        height: 120,
        step: now.step === undefined ? null : Number(now.step),
        weight: points => weightFor(now.smooth, points),
        log: isLog(now, key),
        label: title,
        show,
        onStep: step => state.set({ step }),
      }),
    );
  };
  const share = visit => (visit.solved === null ? NaN : visit.solved / visit.tried);
  return [
    h(
      "div.rt-prompt-head",
      button("all prompts", () => state.set({ prompt: null }), { testid: "all-prompts" }),
      h("h1.rt-prompts-title#prompt-key", inert(one.prompt_key)),
      h(
        "span.rt-soft",
        `${plural(one.rollouts, "rollout")}${one.solved === null ? "" : `, ${number(one.solved)} solved${ofKnown(one)}`}${firstSolved(one)}`,
      ),
      explain(one.prompt_key, now),
    ),
    one.prompt
      ? h("p.rt-prompt-text", { dir: "auto" }, inert(one.prompt))
      : h("p.rt-faint", "No rollout of it was kept, so its text is not known."),
    several ? legend(one.places.map(place => ({ name: name(place) }))) : null,
    h(
      "div.rt-run-grid",
      { style },
      chart("prompt reward", "Reward, mean of each visit", visit => visit.mean_reward ?? NaN),
      chart("prompt solved", "Solved", share, percent),
      chart("prompt length", "Sampled tokens, mean", visit => visit.n_sampled ?? NaN),
    ),
    places.map(place => visits(place, one, now)),
  ];
}

const ofKnown = one => (one.tried < one.rollouts ? ` of ${number(one.tried)} known` : "");

function firstSolved(one) {
  const steps = one.places.flatMap(place => place.visits.filter(visit => visit.solved > 0).map(visit => visit.step));
  return steps.length ? `, first at step ${number(Math.min(...steps))}` : one.solved === 0 ? ", never solved" : "";
}

// Its rollouts in the run and split that are looked at, against those of the other prompts.
function explain(key, now) {
  const where = `prompt_key = '${key.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`;
  return button("explain", () => toExplain({ where, against: "rest=1", step: null, prompt: null }), {
    title: `What its rollouts in ${now.split} have that those of other prompts do not`,
    testid: "prompt-explain",
  });
}

function visits(place, one, now) {
  const listed = place.visits.slice(-MOST_LISTED);
  return block(
    "section.rt-run-block#visits",
    inert(`${place.run}, ${place.split}`),
    plural(place.visits.length, "visit"),
    scrolling(
      `Visits in ${place.split}`,
      table(
        { class: "rt-prompts-table" },
        ["step", "rewards", "solved", "tokens", "stopped by", "kept", ""],
        listed,
        visit =>
          h(
            "tr#visit",
            { class: String(visit.step) === now.step ? "rt-here" : "" },
            h("td", number(visit.step)),
            h(
              "td",
              h.each("span.rt-visit-dots", visit.rewards, reward =>
                h("i", { style: { background: rewardColour(reward, one.range) }, title: number(reward) }),
              ),
              ` ${number(visit.mean_reward)}`,
            ),
            h("td", visit.solved === null ? "–" : `${number(visit.solved)} of ${number(visit.tried)}`),
            h("td", number(visit.n_sampled === null ? null : Math.round(visit.n_sampled))),
            h("td", inert(reasons(visit)) || "–"),
            h.each("td", visit.ids.slice(0, 4), (id, i) =>
              ghost(String(i + 1), () => toRollout({ id }, { run: place.run, split: place.split }), {
                "aria-label": `Open rollout ${i + 1} of step ${visit.step}`,
                testid: "visit-open",
              }),
            ),
            h(
              "td",
              visit.ids.length > 1 &&
                ghost("compare", () => compare(place, visit.ids[0], visit.ids.at(-1)), { testid: "visit-compare" }),
              earlier(place, visit, listed),
            ),
          ),
      ),
    ),
  );
}

const reasons = visit =>
  Object.entries(visit.stop_reasons)
    .map(([reason, n]) => `${reason} ${n}`)
    .join(", ");

// Against the visit before it that kept a rollout.
function earlier(place, visit, listed) {
  const before = listed.filter(each => each.step < visit.step && each.ids.length).pop();
  if (!before || !visit.ids.length) return null;
  return ghost(`with step ${number(before.step)}`, () => compare(place, before.ids[0], visit.ids[0]), {
    title: "Side by side with the visit before, at the first turn that differs",
    testid: "visit-before",
  });
}

function compare(place, a, b) {
  state.set({ page: "compare", run: place.run, split: place.split, a, b, at: "difference" });
}
