// The list on the left: groups of a step with their reward spread, or a flat list in another order.

import { button, h, replace } from "../../lib/dom.js";
import { USUAL } from "../../lib/flags.js";
import { compact, number, plural, shown as shownValue, signed } from "../../lib/format.js";
import { aroundHits } from "../../lib/highlight.js";
import { rewardColour } from "../../lib/colour.js";
import { firstWords, inert } from "../../lib/text.js";
import { lateChips } from "../rollout_header/script.js";

export const SORTS = [
  ["", "by group"],
  ["-reward", "reward, high first"],
  ["reward", "reward, low first"],
  ["-update_share", "share of the update"],
  ["-mismatch_k3", "train against rollout"],
  ["-staleness_max", "staleness"],
  ["-n_sampled", "longest"],
  ["n_sampled", "shortest"],
  ["-n_tool_errors", "tool errors"],
];

const rounded = value => Math.round(value * 100) / 100;

const RANK = ["error", "warn", "info", undefined];

// Chips of the flags that a row wears; `explains` names those under each of them.
export function flagChips(flags, severities = {}, limit = 1, explains = {}) {
  const said = flag => [flag, ...(explains[flag] || []).map(child => `\u2514 ${child}`)].join("\n");
  const ranked = [...flags].sort((a, b) => RANK.indexOf(severities[a]) - RANK.indexOf(severities[b]));
  return [
    ranked
      .slice(0, limit)
      .map(flag =>
        h(
          "span",
          { class: `rt-chip rt-flag-chip rt-chip-${severities[flag] || "info"}`, title: flags.map(said).join("\n") },
          flag.replaceAll("_", " "),
          explains[flag]?.length ? ` +${explains[flag].length}` : "",
        ),
      ),
    flags.length > limit &&
      h("span.rt-chip.rt-more-flags", { title: ranked.slice(limit).map(said).join("\n") }, `+${flags.length - limit}`),
  ];
}

// Flags that are a property of the run, without a colour.
function usualChip(flags) {
  if (!flags.length) return null;
  return h(
    "span.rt-chip.rt-flag-chip#usual-chip",
    { title: `${USUAL}: ${flags.join(", ").replaceAll("_", " ")}` },
    flags[0].replaceAll("_", " "),
    flags.length > 1 ? ` +${flags.length - 1}` : "",
  );
}

export function dots(rewards, range) {
  const shown = rewards.slice(0, 64);
  return h(
    "div.rt-dots",
    { title: rewards.map(r => number(r.reward)).join("  ") },
    shown.map(r => h("i", { class: r.traced ? "" : "rt-untraced", style: { "--dot": rewardColour(r.reward, range) } })),
    rewards.length > shown.length && h("span.rt-faint", ` +${rewards.length - shown.length}`),
  );
}

// Where what was searched for was found, and the words around it.
function snippet(words, text) {
  const pieces = aroundHits(words, text);
  const shown = pieces ? pieces.map((piece, at) => (at % 2 ? h("mark", piece) : piece)) : words;
  return h("span.rt-sample-snippet#snippet", { dir: "auto" }, shown);
}

export function sampleCard(card, { text = "", range, severities, selected, open, showStep, inGroup, sortedBy }) {
  const where = [
    showStep ? `step ${number(card.step)}` : null,
    inGroup || card.group === null ? null : `g${number(card.group)}`,
    card.sample === null ? null : `#${number(card.sample)}`,
  ]
    .filter(Boolean)
    .join(" · ");
  return h(
    "button#sample-card",
    {
      class: "rt-sample" + (selected ? " rt-selected" : "") + (card.discard_reason ? " rt-discarded" : ""),
      dataset: { id: card.id },
      "aria-current": selected ? "true" : null,
      onclick: event => open(card, event),
      onmousedown: event => event.shiftKey && event.preventDefault(), // no text is marked
    },
    h("span.rt-sample-reward", { style: { "--dot": rewardColour(card.reward, range) } }, number(card.reward, 3)),
    h(
      "span.rt-sample-body",
      h("span.rt-sample-words.rt-ellipsis", firstWords(card.words || "") || h("em.rt-faint", "no text")),
      card.snippet ? snippet(firstWords(card.snippet, 240), text) : null,
      h(
        "span.rt-sample-facts",
        where ? h("span", where) : null,
        sortedBy &&
          card.sorted_by !== null &&
          h("b#sorted-by", { title: "sorted by" }, `${sortedBy} ${shownValue(card.sorted_by, 3)}`),
        card.advantage === null
          ? null
          : h("span", { title: `advantage ${signed(card.advantage)}` }, "A ", signed(rounded(card.advantage))),
        card.n_tokens === null ? null : h("span", { title: "tokens in all" }, compact(card.n_tokens), " tok"),
        card.staleness_max > 0 &&
          h(
            "span",
            { title: "staleness: version being trained minus the oldest version" },
            "stale ",
            number(card.staleness_max),
          ),
        card.discard_reason &&
          !inGroup &&
          h("span.rt-chip", { title: "not trained on" }, inert(String(card.discard_reason)).replaceAll("_", " ")),
        lateChips(card.late, card.superseded),
        (card.labels || []).map(name => h("span.rt-chip.rt-label-chip", { title: "label" }, inert(name))),
        flagChips(card.flags, severities, 1, card.explains),
      ),
    ),
  );
}

function groupCard(group, options) {
  const { range } = options;
  const lone = group.group === null;
  const usual = group.usual_flags || [];
  const tied =
    group.tied && !lone
      ? h(
          "span",
          {
            class: usual.includes("tied_group") ? "rt-chip" : "rt-chip rt-chip-warn",
            title: "All rewards are equal: this group teaches nothing",
          },
          "tied",
        )
      : null;
  const reasons = new Set(group.samples.map(card => card.discard_reason));
  const discarded =
    reasons.size === 1 && [...reasons][0]
      ? h("span.rt-chip", { title: "not trained on" }, inert(String([...reasons][0])).replaceAll("_", " "))
      : null;
  const zero =
    group.zero_advantage && !group.tied && !lone
      ? h("span.rt-chip.rt-chip-warn", { title: "Every advantage is zero" }, "zero advantage")
      : null;
  return h(
    "section.rt-group#group-card",
    { dataset: { group: String(group.group) } },
    h(
      "header.rt-group-head",
      { title: firstWords(group.prompt || "", 600) },
      h(
        "div.rt-group-line",
        group.group === null || !options.openGroup
          ? h("b", group.group === null ? "Without a group" : `Group ${number(group.group)}`)
          : h(
              "button.rt-group-open",
              { title: "The whole group at a glance (5)", onclick: () => options.openGroup(group.group) },
              `Group ${number(group.group)}`,
            ),
        group.mean !== null &&
          !lone &&
          h("span.rt-soft", { title: "mean reward of all rollouts of the group" }, `mean ${number(group.mean, 3)}`),
        h(
          "span.rt-faint.rt-group-count",
          { title: "kept of all rollouts of the group" },
          `${group.samples.length}/${group.n}`,
        ),
      ),
      group.prompt && !lone ? h("div.rt-group-prompt.rt-ellipsis", firstWords(group.prompt)) : null,
      h(
        "div.rt-group-chips",
        group.rewards.length && !lone ? dots(group.rewards, range) : null,
        tied,
        zero,
        discarded,
        flagChips(group.flags || [], options.severities),
        usualChip(usual.filter(flag => flag !== "tied_group")),
      ),
    ),
    group.samples.map(card =>
      sampleCard(card, { ...options, inGroup: true, selected: card.id === options.selectedId }),
    ),
  );
}

export function drawSamples(root, data, options) {
  const keep = root.scrollTop;
  const all = { ...options, range: data.range, severities: data.severities };
  if (!data.n_matched) {
    replace(root, emptyList(data, options));
    return;
  }
  if (data.groups) root.replaceChildren(...data.groups.map(group => groupCard(group, all)));
  else {
    replace(
      root,
      data.samples.map(card => sampleCard(card, { ...all, selected: card.id === options.selectedId })),
      data.next &&
        button(`more of ${plural(data.n_matched, "rollout")}`, () => options.more(data.next), {
          class: "rt-button rt-more",
        }),
    );
  }
  root.scrollTop = keep;
}

function emptyList(data, options) {
  if (options.filtered) {
    const steps = options.scope === "all" ? "all steps" : "this step";
    return h(
      "div.rt-empty",
      h("b", "Nothing matches."),
      h(
        "p",
        data.n_traced
          ? `${plural(data.n_traced, "rollout")} of ${steps} are kept; the filter leaves none of them.`
          : `No rollout of ${steps} was kept as a trace.`,
      ),
      options.scope === "all" ? null : h("button.rt-button", { onclick: options.widen }, "search all steps"),
    );
  }
  return h(
    "div.rt-empty",
    h("b", "No rollout kept at this step."),
    h(
      "p",
      data.n_rows
        ? `${plural(data.n_rows, "rollout")} were logged to the ledger; the cap left none of them as a trace. Explore lists them all.`
        : "Nothing was logged here. Pick another step.",
    ),
  );
}

export function mark(root, id) {
  for (const node of root.querySelectorAll(".rt-sample")) {
    const selected = node.dataset.id === id;
    node.classList.toggle("rt-selected", selected);
    node.toggleAttribute("aria-current", selected);
    if (selected) requestAnimationFrame(() => node.scrollIntoView({ block: "nearest" }));
  }
}
