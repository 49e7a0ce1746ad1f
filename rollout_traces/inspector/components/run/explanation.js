// What differs between a step and the ten before it, as a panel.

import { button, h, svg } from "../../lib/dom.js";
import { number, plural, signed } from "../../lib/format.js";

const PICTURE = { width: 300, height: 44 };

// answer: an explanation of the server; report: the run's, for what is in force; doing: {rollouts, close, openId}.
export function explanation(answer, report, doing) {
  const step = answer.step;
  const inForce = (report?.diagnoses || []).filter(each => each.step !== null && each.step <= step && (each.last === null || each.last >= step));
  return [
    h("div", { class: "rt-side-head-line" }, h("h2", null, `What changed at step ${number(step)}`), button("close", doing.close, { class: "rt-ghost" })),
    h("p", { class: "rt-soft", testid: "explain-against" }, `Against ${answer.b}: ${plural(answer.rows[0], "rollout")} in ${plural(answer.groups[0], "group")} against ${number(answer.rows[1])} in ${number(answer.groups[1])}; ${number(answer.n_tested)} columns and values, false discovery held at 1 %.`),
    answer.remarks.map(remark => h("p", { class: "rt-soft" }, remark)),
    inForce.length ? h("section", null, h("h3", null, "In force at this step"), inForce.map(each => h("p", { class: `rt-sev-${each.severity}` }, each.sentence))) : null,
    h("section", { testid: "findings" }, h("h3", null, "What differs"), answer.findings.length ? answer.findings.map(each => finding(each, step, doing)) : h("p", { class: "rt-empty" }, "Nothing beyond what groups and steps differ by chance.")),
    answer.decompositions.map(each => parts(each)),
    answer.carried.map(each => h("p", null, each.sentence, " ", examples(each.ids, doing))),
    phrases("Written more often than before", answer.phrases, doing),
    phrases("Winners of its groups write more often", answer.winners, doing),
    Object.entries(answer.only_in).map(([column, side]) => h("p", { class: "rt-faint" }, side === "A" ? `Only this step knows ${column}.` : `This step does not know ${column}.`)),
  ].flat(2);
}

function finding(each, step, doing) {
  const { detail, effect } = each;
  return h("div", { class: "rt-finding", testid: "finding", dataset: { column: each.column } }, h("p", null, each.sentence),
    h("p", { class: "rt-faint" }, `effect ${signed(effect.effect)}, from ${signed(effect.low)} to ${signed(effect.high)}; p ${effect.p < 1e-4 ? effect.p.toExponential(0) : number(effect.p)}${effect.paired ? "; paired" : ""}`),
    detail?.picture ? bars(detail.picture) : null,
    h("div", { class: "rt-run-more" }, detail ? examples(detail.examples, doing) : null, detail?.where ? button("rollouts", () => doing.rollouts(`${detail.where} and step = ${step}`), { class: "rt-ghost", title: detail.where }) : null),
    each.consequences.length ? h("p", { class: "rt-faint" }, `With it: ${each.consequences.join("; ")}`) : null);
}

function examples(ids, doing) {
  return ids.filter(Boolean).slice(0, 3).map((id, i) => button(i ? String(i + 1) : "open 1", () => doing.openId(id), { class: "rt-ghost", title: "a typical one", testid: "explain-open" }));
}

// Both distributions on one axis: before faint, the step over it.
function bars({ edges, a, b }) {
  const top = Math.max(...a, ...b, 1e-9);
  const wide = PICTURE.width / a.length;
  const picture = svg("svg", { class: "rt-two-bars", width: PICTURE.width, height: PICTURE.height + 13, role: "img", "aria-label": `from ${number(edges[0])} to ${number(edges[edges.length - 1])}` });
  for (const [name, values] of [["b", b], ["a", a]]) values.forEach((value, i) => {
    const tall = (value / top) * PICTURE.height;
    picture.append(svg("rect", { class: `rt-of-${name}`, x: i * wide + (name === "a" ? wide * 0.25 : 0), y: PICTURE.height - tall, width: name === "a" ? wide * 0.5 : wide - 1, height: tall }));
  });
  picture.append(svg("text", { class: "rt-axis", x: 0, y: PICTURE.height + 11 }, number(edges[0])), svg("text", { class: "rt-axis", x: PICTURE.width, y: PICTURE.height + 11, "text-anchor": "end" }, number(edges[edges.length - 1])));
  return picture;
}

// The change of the mean reward, a bar a part.
function parts(each) {
  const rows = each.components.length ? each.components.map(one => [one.component, one.part]) : each.mixes.flatMap(one => [[`${one.value ?? "unknown"}, mix`, one.mix], [`${one.value ?? "unknown"}, within`, one.within]]);
  if (rows.length < 2 || (!each.components.length && each.mixes.length < 2)) return null;
  const top = Math.max(...rows.map(([, value]) => Math.abs(value)), 1e-12);
  return h("section", { testid: "decomposition" }, h("h3", null, `Mean reward ${signed(each.change)}, by ${each.column.replaceAll("_", " ")}`), h("div", { class: "rt-parts" }, rows.slice(0, 12).map(([name, value]) => [
    h("span", { class: "rt-ellipsis", title: name }, name), h("span", { class: "rt-part" }, h("i", { class: value < 0 ? "rt-down" : "", style: { left: `${value < 0 ? 50 - (50 * Math.abs(value)) / top : 50}%`, width: `${(50 * Math.abs(value)) / top}%` } })), h("b", null, signed(value))])));
}

function phrases(title, found, doing) {
  if (!found.length) return null;
  return h("section", { testid: "phrases" }, h("h3", null, title), found.map(each => h("p", null, h("b", null, `“${each.phrase}” `), `${number(each.n_a)} rollouts against ${number(each.n_b)} `, examples(each.examples, doing))));
}
