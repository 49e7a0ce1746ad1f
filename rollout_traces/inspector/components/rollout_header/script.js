// What is known of one rollout, above its conversation.

import { button, copyButton, ghost, h } from "../../lib/dom.js";
import { number, percent, plural, seconds, shown, signed } from "../../lib/format.js";
import { rewardColour } from "../../lib/colour.js";
import { USUAL, grouped } from "../../lib/flags.js";
import { keep, recalled } from "../../lib/kept.js";
import { inert, words } from "../../lib/text.js";

// A number or a text with its label; nodes as they are, nothing where it is unknown.
function fact(label, value, title) {
  if (value === null || value === undefined || value === "") return null;
  const said = Array.isArray(value) ? value : shown(value);
  return h("div.rt-fact", { title }, h("span.rt-label", label), h("span.rt-fact-value", said));
}

function versions(m) {
  if (m.version_min === undefined) return null;
  return m.version_min === m.version_max ? `v${m.version_min}` : `v${m.version_min} to v${m.version_max}`;
}

function components(m, ranges) {
  const names = Object.keys(m).filter(key => key.startsWith("component/"));
  if (!names.length) return null;
  return h.each("div.rt-components", names, key => {
    const name = key.slice("component/".length);
    const [low, high] = ranges[key] || [Math.min(0, m[key]), Math.max(1, m[key])];
    const share = high > low ? Math.min(Math.max((m[key] - low) / (high - low), 0), 1) : 1;
    return h(
      "div.rt-component",
      { title: `${name}: ${number(m[key])} in ${number(low)} to ${number(high)}` },
      h("span.rt-label.rt-ellipsis", inert(name)),
      h("span.rt-bar", h("i", { style: { width: `${share * 100}%`, background: rewardColour(m[key], [low, high]) } })),
      h("b", number(m[key])),
    );
  });
}

const SHOWN = new Set(
  words(`
    status schema kind uid split step group sample flags reward advantage n_tokens n_prompt n_sampled n_environment
    n_thinking n_turns n_tool_calls n_tool_errors stop_reason version_min version_max train_version staleness_max
    mean_logprob mismatch_k3 update_share selected_by selected_probability population parsed_answer ground_truth
    discard_reason source origin raw_reward success
  `),
);

function answer(label, value) {
  if (value === undefined || value === null) return null;
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return h(
    "span.rt-answer",
    { title: inert(text.slice(0, 2000)) },
    h("span.rt-label", label),
    h("code", { dir: "auto" }, inert(text.slice(0, 400))),
  );
}

export function selectedSentence(m, group) {
  if (!m.selected_by) return "";
  const chance =
    m.selected_probability === undefined || m.selected_probability >= 1
      ? ""
      : `, a chance of ${percent(m.selected_probability)}`;
  const of = m.population === undefined ? "" : `, out of ${number(m.population)} rollouts of the step`;
  return `Kept as “${inert(String(m.selected_by)).replaceAll("_", " ").replace(":", ": ")}”${of}${chance}.`;
}

// Reward and advantage; `side` says whose they are where there are two.
export function headline(m, range, side, ...beside) {
  return h(
    "div.rt-headline",
    h(
      "div.rt-reward",
      { style: { "--dot": rewardColour(m.reward, range) }, title: "reward" },
      h("span.rt-label", `${side}reward`),
      h("b", { testid: side ? null : "reward" }, number(m.reward)),
    ),
    h(
      "div.rt-advantage",
      { title: "mean advantage over the loss tokens" },
      h("span.rt-label", "advantage"),
      h("b", signed(m.advantage)),
    ),
    beside,
  );
}

// What stands in one line; the rest unfolds.
const OPENED = "rt-header-open";
const SHOWN_FLAGS = 3;

// actions: {showFlag(flag), labels: a node, rawRecord(): a promise of the record that it was imported from}, and where others can be reached {compare(), pin(), pinned: trace id or null, share: a button, episode(): opens the rollout's episode}
export function rolloutHeader(rollout, actions) {
  const m = rollout.metadata;
  const title = [
    m.step === undefined ? null : `Step ${number(m.step)}`,
    m.group === undefined ? null : `group ${number(m.group)}`,
    m.sample === undefined ? null : `sample ${number(m.sample)}`,
  ]
    .filter(Boolean)
    .join(" · ");
  return h(
    "section.rt-rollout-head#rollout-header",
    headline(
      m,
      rollout.ranges.reward,
      "",
      h("h1.rt-headline-title", title || "A trace of another tool"),
      h("div.rt-headline-tools", actions.compare ? tools(rollout, actions) : null),
    ),
    details(rollout, actions.rawRecord),
    flagLines(rollout.flags, actions.showFlag),
    actions.labels,
    rollout.warnings.map(warning => h("div.rt-strip.rt-strip-info", h("span", inert(warning)))),
  );
}

function tools(rollout, { compare, pin, pinned, share, episode }) {
  const named = rollout.metadata.episode;
  return [
    named === undefined || !episode
      ? null
      : ghost("episode", episode, {
          title: `The rows of episode ${inert(String(named)).slice(0, 80)} as a tree`,
          testid: "open-episode",
        }),
    button(pinned && pinned !== rollout.id ? "compare with pinned" : "compare", compare, {
      title: pinned
        ? "The pinned rollout and this one side by side (c)"
        : "Best and worst of this group side by side (c)",
      testid: "open-compare",
    }),
    ghost(pinned === rollout.id ? "pinned" : "pin", pin, {
      "aria-pressed": String(pinned === rollout.id),
      title: "Pin it, to compare with another one of any step (x)",
      testid: "pin",
    }),
    copyButton(() => location.href, "copy link"),
    share,
  ];
}

function details(rollout, readRecord) {
  const m = rollout.metadata;
  const node = h(
    "details.rt-head-more#header-more",
    { open: recalled(OPENED) === "1" },
    h(
      "summary",
      { title: "All that is known of this rollout" },
      h("span.rt-head-line", line(m, rollout.superseded), answers(m)),
    ),
    h("div.rt-faint.rt-selected-by", selectedSentence(m)),
    facts(rollout),
    components(m, rollout.ranges),
    more(m),
    rawRecord(m.origin, readRecord),
  );
  node.addEventListener("toggle", () => keep(OPENED, node.open ? "1" : "0"));
  return node;
}

const warnChip = (name, title) => h(`span.rt-chip.rt-chip-warn#${name}`, { title }, name);

// That a rollout came after its step was closed, and that its attempt was given up behind the step.
export function lateChips(late, superseded) {
  return [
    Boolean(late) && warnChip("late", "It came after its step was closed; the step's metrics leave it out"),
    Boolean(superseded) && warnChip("superseded", "A later attempt of the run went on from before this step"),
  ];
}

function sampled({ n_sampled, n_tokens }) {
  const known = typeof n_tokens === "number";
  return known ? `${number(n_sampled)} sampled of ${number(n_tokens)} tokens` : `${plural(n_sampled, "token")} sampled`;
}

// The facts that one looks for first, as one line that gives way.
function line(m, superseded) {
  const parts = [
    m.n_sampled === undefined ? null : sampled(m),
    m.n_turns === undefined ? null : plural(m.n_turns, "assistant turn"),
    m.n_tool_calls ? plural(m.n_tool_calls, "tool call") : null,
    m.stop_reason ? `stop: ${inert(String(m.stop_reason))}` : null,
    versions(m),
    m.staleness_max ? `stale ${number(m.staleness_max)}` : null,
    m.source === undefined ? null : inert(String(m.source)),
    m.written_by === undefined ? null : `logged by ${inert(String(m.written_by))}`,
  ].filter(Boolean);
  return [
    m.discard_reason &&
      h("span.rt-chip.rt-chip-warn", `not trained on: ${inert(String(m.discard_reason)).replaceAll("_", " ")}`),
    lateChips(m.late, superseded),
    m.n_tool_errors ? h("span.rt-chip.rt-chip-error", `${plural(m.n_tool_errors, "tool error")}`) : null,
    parts.map(each => h("span", each)),
    Object.keys(m)
      .filter(key => key.startsWith("component/"))
      .slice(0, 4)
      .map(key => h("span", inert(key.slice("component/".length)), " ", h("b", number(m[key])))),
  ];
}

function answers(m) {
  return [answer("expected", m.ground_truth), answer("answer", m.parsed_answer)];
}

function facts(rollout) {
  const m = rollout.metadata;
  return h(
    "div.rt-facts",
    fact("tokens", m.n_tokens, "without padding"),
    fact("prompt", m.n_prompt, "tokens before the first sampled one"),
    fact("sampled", m.n_sampled, "tokens the policy sampled"),
    fact("environment", m.n_environment || null, "unsampled tokens after the first sampled one"),
    fact("thinking", m.n_thinking || null, "sampled tokens inside thinking"),
    fact("assistant turns", m.n_turns),
    fact(
      "tool calls",
      m.n_tool_calls
        ? [
            number(m.n_tool_calls),
            m.n_tool_errors ? h("span.rt-error-text", ` ${number(m.n_tool_errors)} failed`) : null,
          ]
        : null,
    ),
    fact("stop", m.stop_reason),
    fact("version", versions(m), "policy versions that sampled it"),
    fact("trained at", m.train_version === undefined ? null : `v${m.train_version}`),
    fact("staleness", m.staleness_max),
    fact("mean logprob", m.mean_logprob, "nats a sampled token"),
    fact("mismatch k3", m.mismatch_k3, "train against rollout"),
    fact("update share", m.update_share === undefined ? null : percent(m.update_share), "share of the step's update"),
    fact("raw reward", m.raw_reward === m.reward ? null : m.raw_reward),
    fact("success", m.success === undefined ? null : m.success ? "yes" : "no"),
    fact("source", m.source),
    fact("engine", m.engine),
    fact("roles from", m.decoded_from, "where roles came from: messages, template or mask"),
    timings(rollout.timings),
  );
}

function more(m) {
  const rest = Object.keys(m)
    .filter(key => !SHOWN.has(key) && !key.startsWith("component/"))
    .sort();
  if (!rest.length) return null;
  return h(
    "details.rt-more-facts",
    h("summary", plural(rest.length, "more field")),
    h.each("dl", rest, key => [
      h("dt.rt-mono", inert(key)),
      h("dd", shown(typeof m[key] === "object" ? JSON.stringify(m[key]) : m[key])),
    ]),
  );
}

// Where an imported rollout was read from; its record is read when it is unfolded.
function rawRecord(origin, read) {
  if (origin === undefined) return null;
  if (!read) return h("p.rt-faint", "imported from ", h("code", inert(String(origin))));
  const body = h("pre.rt-raw-record.rt-mono#raw-record", { dir: "auto" }, "reading …");
  const node = h(
    "details.rt-more-facts#raw-record-more",
    h("summary", "raw record, ", h("code", inert(String(origin)))),
    body,
  );
  node.addEventListener(
    "toggle",
    async () => {
      try {
        const found = await read();
        const rest = found.n_left_out ? `\n… ${plural(found.n_left_out, "more character")}` : "";
        body.textContent = inert(found.text) + rest;
      } catch (error) {
        body.textContent = error.message;
      }
    },
    { once: true },
  );
  return node;
}

// One line a flag, the worst first; a click goes through the places where it was seen.
function flagLines(flags, show) {
  const all = grouped(flags);
  if (!all.length) return null;
  const list = h.each("div.rt-flags", all.slice(0, SHOWN_FLAGS), entry => flagLine(entry, show));
  const rest = all.slice(SHOWN_FLAGS);
  if (rest.length) {
    const open = ghost(
      `${plural(rest.length, "more flag")}: ${rest.map(entry => entry.name.replaceAll("_", " ")).join(", ")}`,
      () => open.replaceWith(...rest.map(entry => flagLine(entry, show))),
      { testid: "more-flags" },
    );
    list.append(open);
  }
  return list;
}

function flagLine(entry, show) {
  let next = 0;
  const count = entry.flags.length;
  const where = entry.flags.filter(flag => flag.turn !== null);
  const turns = [...new Set(where.map(flag => flag.turn))];
  return h(
    "button#flag",
    {
      class: `rt-strip rt-strip-${entry.usual ? "usual" : entry.severity}${entry.cause ? " rt-strip-child" : ""}`,
      dataset: { flag: entry.name, cause: entry.cause },
      title: `${entry.cause ? `Explained by ${entry.cause.replaceAll("_", " ")}. ` : ""}${count > 1 ? "Goes to the next place with each click. " : ""}${inert(entry.message)}`,
      onclick: () => {
        show(entry.flags[next % count]);
        next += 1;
      },
    },
    h("b", entry.name.replaceAll("_", " "), count > 1 ? ` \u00d7${number(count)}` : ""),
    h("span.rt-ellipsis", inert(entry.message)),
    entry.usual ? h("span.rt-strip-where.rt-nowrap", USUAL) : null,
    turns.length > 0 &&
      h(
        "span.rt-strip-where.rt-nowrap",
        turns.length === 1
          ? `turn ${turns[0]}`
          : `turns ${turns.slice(0, 5).join(", ")}${turns.length > 5 ? ", \u2026" : ""}`,
      ),
  );
}

function timings(values) {
  const entries = Object.entries(values || {}).filter(([name]) => !/^(turn|tool)\/\d+$/.test(name));
  if (!entries.length) return null;
  const taken = entries.map(([name, value]) => `${inert(name)} ${seconds(Number(value))}`);
  return fact("time", taken.join(", "));
}
