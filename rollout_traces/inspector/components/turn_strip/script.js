// The turns of a rollout as a small strip: each in the colour of its role, as wide as its tokens, tools marked.

import { svg } from "../../lib/dom.js";
import { plural } from "../../lib/format.js";
import { inert } from "../../lib/text.js";

const WIDTH = 200;
const HEIGHT = 16;

// The width of a rollout beside others: its tokens, or its turns where their tokens are unobserved.
export const lengthOf = turns => turns.reduce((sum, turn) => sum + turn.n, 0) || turns.length;

// turns: {role, n, calls: names, failed}; longest: of the longest rollout beside it; goTo(index) opens a turn.
export function turnStrip(turns, longest, goTo) {
  const whole = turns.reduce((sum, turn) => sum + turn.n, 0);
  const tokens = n => (whole ? `, ${plural(n, "token")}` : "");
  const said = `${plural(turns.length, "turn")}${tokens(whole)}`;
  const picture = svg("svg.rt-turn-strip", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    width: WIDTH,
    height: HEIGHT,
    role: "img",
    "aria-label": said,
  });
  let at = 0;
  for (const [index, turn] of turns.entries()) {
    const n = whole ? turn.n : 1;
    const [x, width] = [(at / longest) * WIDTH, Math.max((n / longest) * WIDTH - 1, 1)];
    const words = `turn ${index}: ${turn.role}${tokens(turn.n)}${turn.calls.length ? `, calls ${turn.calls.map(inert).join(", ")}` : ""}${turn.failed ? ", failed" : ""}`;
    picture.append(
      svg(
        "rect",
        { class: `rt-role-${turn.role}`, x, y: 3, width, height: 11, onclick: () => goTo(index) },
        svg("title", words),
      ),
    );
    if (turn.calls.length || turn.failed)
      picture.append(
        svg("rect", { class: turn.failed ? "rt-strip-failed" : "rt-strip-call", x, y: 0, width, height: 2.5 }),
      );
    at += n;
  }
  return picture;
}
