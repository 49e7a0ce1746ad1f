// What differs between two sets of rollouts: ranked findings, parts of the reward's change, who carried it, phrases.

import { ghost, h, svg } from "../../lib/dom.js";
import { number, pValue, percent, plural, signed, signedBeside } from "../../lib/format.js";
import { inert } from "../../lib/text.js";
import { queries } from "./queries.js";

const PICTURE = { width: 300, height: 44 };

// answer: of the server; doing: {rollouts(place), open(id, mark), figures(of, at) -> promise}.
export function explanation(answer, doing) {
  return { head: head(answer), findings: findings(answer, doing), beside: beside(answer, doing) };
}

// The diagnoses that hold where one looks; those that may be chance are folded.
export function inForce(title, diagnoses) {
  const line = each => h("p", { class: `rt-sev-${each.severity}` }, inert(each.sentence));
  const doubtful = diagnoses.filter(each => !each.is_sure);
  return [
    h("h3", title),
    diagnoses.filter(each => each.is_sure).map(line),
    doubtful.length
      ? h(
          "details#perhaps-chance",
          h("summary", `${number(doubtful.length)} more that may be chance`),
          doubtful.map(line),
        )
      : null,
  ];
}

function head(answer) {
  return [
    h(
      "p.rt-soft#explain-against",
      h("b", inert(answer.a)),
      " against ",
      h("b", inert(answer.b)),
      answer.rows[1]
        ? `: ${plural(answer.rows[0], "rollout")} in ${plural(answer.groups[0], "group")} against ${number(answer.rows[1])} in ${number(answer.groups[1])}; ${number(answer.n_tested)} columns and values compared, false discovery held at 1%.`
        : `: ${plural(answer.rows[0], "rollout")} in ${plural(answer.groups[0], "group")} against none.`,
    ),
    ...[...answer.remarks, ...answer.problems].map(remark => h("p.rt-soft#explain-remark", inert(remark))),
  ];
}

function findings(answer, doing) {
  return h(
    "section#findings",
    h(
      "h3",
      "What differs",
      answer.findings.length ? h("span.rt-soft", { style: { fontWeight: 400 } }, " from B to A") : null,
    ),
    answer.findings.some(each => each.is_sure)
      ? null
      : h(
          "p.rt-empty",
          answer.n_tested ? "Nothing beyond what groups and steps differ by chance." : "There is nothing to compare.",
        ),
    answer.findings.map((each, at) => finding(each, at, doing)),
  );
}

function beside(answer, doing) {
  return [
    answer.decompositions.map((each, at) => parts(each, at, doing)),
    answer.carried.length > 0 &&
      h.each("section#carried", h("h3", "Who carried it"), answer.carried, (each, at) =>
        counted("carried", at, doing, inert(each.sentence), " ", examples(each.ids, doing)),
      ),
    phrases("Written more often in A", answer.phrases, doing),
    phrases("Winners of A’s groups write more often", answer.winners, doing),
    answer.one_sided.map(each => h("p.rt-faint", inert(`On one side alone: ${each.sentence}.`))),
  ]
    .flat(2)
    .filter(Boolean);
}

function finding(each, at, doing) {
  const { detail, effect } = each;
  const slot = h("div");
  return h(
    "div.rt-finding#finding",
    { dataset: { column: each.column } },
    h("p", inert(each.sentence)),
    h(
      "p.rt-faint",
      { title: "The effect is from −1, where A is always below B, to +1, where it is always above" },
      `effect ${signed(effect.effect)}, 95% from ${signed(effect.low)} to ${signed(effect.high)}; p ${pValue(effect.p)}${effect.paired ? "; paired" : ""}; ${counts(each)}`,
    ),
    each.value === null ? (detail?.picture ? bars(detail.picture) : null) : shares(each),
    h(
      "div.rt-run-more",
      detail ? [h("span.rt-faint", detail.examples.length ? "such as" : null), examples(detail.examples, doing)] : null,
      detail?.place?.where &&
        ghost("rollouts", () => doing.rollouts(detail.place), {
          title: detail.place.where,
          testid: "finding-rollouts",
        }),
      queries(slot, () => doing.figures("findings", at)),
    ),
    slot,
    each.consequences.length
      ? h("p.rt-faint", inert(`With it: ${each.consequences.map(one => one.sentence).join("; ")}`))
      : null,
  );
}

// How many know it: in the part that its levels are of, and in all, of which its effect and p are.
function counts({ detail, logged, part, n_a, n_b }) {
  const both = (a, b) => `${number(a)} against ${number(b)}`;
  if (detail?.part && !part) return `n ${both(detail.n_a, detail.n_b)} there, ${both(n_a, n_b)} in all`;
  return `${logged ? "steps" : "n"} ${both(n_a, n_b)}`;
}

function examples(ids, doing, mark = null) {
  return ids
    .filter(Boolean)
    .slice(0, 3)
    .map((id, i) =>
      ghost(String(i + 1), () => doing.open(id, mark), {
        title: mark ? "Opens it with the phrase marked" : "Opens a rollout",
        "aria-label": `Open rollout ${i + 1}`,
        testid: "explain-open",
      }),
    );
}

// Both distributions on one axis: B wide and faint, A narrow over it.
function bars({ edges, a, b }) {
  const top = Math.max(...a, ...b, 1e-9);
  const wide = PICTURE.width / a.length;
  const picture = svg("svg.rt-two-bars", {
    viewBox: `0 0 ${PICTURE.width} ${PICTURE.height + 13}`,
    width: PICTURE.width,
    height: PICTURE.height + 13,
    role: "img",
    "aria-label": `Both distributions, from ${number(edges[0])} to ${number(edges.at(-1))}`,
  });
  for (const [name, values] of [
    ["b", b],
    ["a", a],
  ])
    values.forEach((value, i) => {
      const tall = (value / top) * PICTURE.height;
      picture.append(
        svg("rect", {
          class: `rt-of-${name}`,
          x: i * wide + (name === "a" ? wide * 0.25 : 0),
          y: PICTURE.height - tall,
          width: name === "a" ? wide * 0.5 : wide - 1,
          height: tall,
        }),
      );
    });
  picture.append(
    svg("text.rt-axis", { x: 0, y: PICTURE.height + 11 }, number(edges[0])),
    svg("text.rt-axis", { x: PICTURE.width, y: PICTURE.height + 11, "text-anchor": "end" }, number(edges.at(-1))),
  );
  return h("div.rt-pictured", picture, key());
}

function key() {
  return h("span.rt-faint.rt-ab", h("i.rt-key-a"), "A", h("i.rt-key-b"), "B");
}

// A share of both sides, as two bars of one scale.
function shares(each) {
  const top = Math.max(each.a, each.b, 1e-9);
  const line = (name, share, rows, of) => [
    h("span", name),
    h("span.rt-share", h("i", { class: `rt-key-${name.toLowerCase()}`, style: { width: `${(share / top) * 100}%` } })),
    h("span.rt-faint", `${percent(share)}, ${number(rows)} of ${number(of)}`),
  ];
  return h("div.rt-two-shares", line("A", each.a, each.rows_a, each.n_a), line("B", each.b, each.rows_b, each.n_b));
}

// The change of the mean reward, a bar a part.
function parts(each, at, doing) {
  const rows = each.components.length
    ? each.components.map(one => [one.component, "", one.part])
    : each.mixes.flatMap(one => [
        [one.value ?? "unknown", ", mix", one.mix],
        [one.value ?? "unknown", ", within", one.within],
      ]);
  if (rows.length < 2 || (!each.components.length && each.mixes.length < 2)) return null;
  const top = Math.max(...rows.map(([, , value]) => Math.abs(value)), 1e-12);
  return h(
    "section#decomposition",
    h("h3", `Mean reward ${signed(each.change)}, by ${inert(each.column).replaceAll("_", " ")}`),
    h.each("div.rt-change-parts", rows.slice(0, 12), ([name, kind, value]) => [
      h("span.rt-part-name", h("span.rt-ellipsis", { title: name }, inert(name)), kind),
      h(
        "span.rt-part-bar",
        h("i", {
          class: value < 0 ? "rt-down" : "",
          style: {
            left: `${value < 0 ? 50 - (50 * Math.abs(value)) / top : 50}%`,
            width: `${(50 * Math.abs(value)) / top}%`,
          },
        }),
      ),
      h("b", { title: signed(value) }, signedBeside(value, top)),
    ]),
    counted("decompositions", at, doing),
  );
}

// A sentence of a list of the answer, with the query of its figures.
function counted(of, at, doing, ...said) {
  const slot = h("div");
  const figures = queries(slot, () => doing.figures(of, at));
  return h("div", h("p", said, " ", figures), slot);
}

function phrases(title, found, doing) {
  if (!found.length) return null;
  return h.each("section#phrases", h("h3", title), found, each =>
    h(
      "p",
      h("mark.rt-phrase", inert(each.phrase)),
      ` ${plural(each.n_a, "rollout")} (${percent(each.share_a)}) against ${number(each.n_b)} (${percent(each.share_b)}) `,
      examples(each.examples, doing, each.phrase),
    ),
  );
}
