// The way of an episode's rows through time: one strip a row, its turns in the colour of their role.

import { svg } from "../../lib/dom.js";
import { number, seconds } from "../../lib/format.js";

export const WIDTH = 1000;

// Where each row begins and ends on a common axis: seconds where the trainer logged when rows began, else tokens,
// a row that shares its beginning with the one it left beginning where they part.
export function spans(tree) {
  const clock = tree.clock && tree.rows.every(row => row.start !== null && row.seconds !== null);
  const placed = new Map();
  const first = clock ? Math.min(...tree.rows.map(row => row.start)) : 0;
  let ends = 0;
  for (const row of tree.rows) {
    const length = lengthOf(row);
    const parent = placed.get(row.parent);
    let span;
    if (clock) span = { begin: row.start - first, shared: 0, end: row.start - first + row.seconds };
    else if (!parent) span = { begin: ends, shared: 0, end: ends + length };
    else {
      const shared =
        row.left.shared !== null && ["branch", "continued", "retry"].includes(row.left.kind) ? row.left.shared : 0;
      const from = shared ? parent.begin + shared : parent.begin + leftAt(tree, row);
      span = { begin: from - shared, shared, end: from - shared + length };
    }
    ends = Math.max(ends, span.end);
    placed.set(row.at, span);
  }
  return { unit: clock ? "seconds" : "tokens", end: Math.max(ends, 1e-9), of: placed };
}

function lengthOf(row) {
  const inTurns = row.turns.reduce((sum, turn) => sum + turn.n, 0);
  return inTurns || row.values.n_sampled || 1;
}

// Tokens of the row that was left, up to the end of the turn at which it was left.
function leftAt(tree, row) {
  const parent = tree.rows.find(each => each.at === row.parent);
  const upTo = row.left.left_at === null ? parent.turns : parent.turns.slice(0, row.left.left_at + 1);
  return upTo.reduce((sum, turn) => sum + turn.n, 0) || lengthOf(parent);
}

export function strip(row, axis) {
  const span = axis.of.get(row.at);
  const x = value => (value / axis.end) * WIDTH;
  const whole = row.turns.reduce((sum, turn) => sum + (turn.n || 1), 0) || 1;
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDTH} 18`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": said(row, span, axis),
  });
  if (!row.turns.length)
    picture.append(
      svg("rect.rt-way-lone", { x: x(span.begin), y: 5, width: Math.max(x(span.end - span.begin), 2), height: 8 }),
    );
  let at = 0;
  for (const [index, turn] of row.turns.entries()) {
    const size = ((turn.n || 1) / whole) * (span.end - span.begin);
    const shared = span.shared && at + size <= span.shared + 1e-9;
    picture.append(
      svg(
        "rect",
        {
          class: shared ? "rt-way-shared" : `rt-role-${turn.role}`,
          x: x(span.begin + at),
          y: shared ? 6 : 3,
          width: Math.max(x(size) - 1, 1),
          height: shared ? 6 : 12,
        },
        svg("title", `turn ${index}: ${turn.role}${turn.calls.length ? `, calls ${turn.calls.join(", ")}` : ""}`),
      ),
    );
    at += size;
  }
  return picture;
}

function said(row, span, axis) {
  const figure = value => (axis.unit === "seconds" ? seconds(value) : `token ${number(Math.round(value))}`);
  return `from ${figure(span.begin)} to ${figure(span.end)}, ${row.turns.length} turns`;
}
