// The turns of a rollout as a small strip: each in the colour of its role, as wide as its tokens, tools marked.

import { svg } from "../../lib/dom.js";
import { plural } from "../../lib/format.js";
import { inert } from "../../lib/text.js";

const WIDTH = 200;
const HEIGHT = 16;

// turns: {role, n, calls: names, failed}; longest: tokens of the longest rollout beside it; goTo(index) opens a turn.
export function turnStrip(turns, longest, goTo) {
  const whole = turns.reduce((sum, turn) => sum + turn.n, 0);
  const said = `${plural(turns.length, "turn")}, ${plural(whole, "token")}`;
  const picture = svg("svg.rt-turn-strip", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    width: WIDTH,
    height: HEIGHT,
    role: "img",
    "aria-label": said,
  });
  let at = 0;
  for (const [index, turn] of turns.entries()) {
    const [x, width] = [(at / longest) * WIDTH, Math.max((turn.n / longest) * WIDTH - 1, 1)];
    const words = `turn ${index}: ${turn.role}, ${plural(turn.n, "token")}${turn.calls.length ? `, calls ${turn.calls.map(inert).join(", ")}` : ""}${turn.failed ? ", failed" : ""}`;
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
    at += turn.n;
  }
  return picture;
}
