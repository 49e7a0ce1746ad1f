// Where each span is drawn: lanes below each other, in a lane a line for each rollout that is on it at the same time.

const LINE = 9;
const HIGHEST = 150;
const LEAST = 18;
const GAP = 6;
const SIZES = [
  ...[1, 10, 100, 1e3, 1e4].flatMap(power => [power, 2 * power, power === 1e4 ? 3e4 : 5 * power]),
  ...[1, 2, 5, 10, 20, 30, 60, 120, 360, 720, 1440].map(minutes => minutes * 6e4),
]; // milliseconds between two marks of the axis

// answer: of `lanes`. Gives {lanes: [{top, height, line}], line: the line of each span in its lane, height}.
export function layout(answer, { dense = false } = {}) {
  const { lane, rollout, start, ms } = answer.spans;
  const n = answer.rollouts.length;
  const stays = new Map(); // lane and rollout -> [first, last] millisecond
  for (let i = 0; i < lane.length; i++) {
    const key = lane[i] * n + rollout[i];
    const stay = stays.get(key);
    if (!stay) stays.set(key, [start[i], start[i] + ms[i]]);
    else {
      stay[0] = Math.min(stay[0], start[i]);
      stay[1] = Math.max(stay[1], start[i] + ms[i]);
    }
  }
  const ordered = [...stays].sort((a, b) => a[1][0] - b[1][0]);
  const lineOf = new Map();
  const ends = answer.lanes.map(() => []);
  for (const [key, [first, last]] of ordered) {
    const free = ends[Math.floor(key / n)];
    let at = free.findIndex(end => end <= first);
    if (at < 0) at = free.length;
    free[at] = last;
    lineOf.set(key, at);
  }
  let top = 0;
  const lanes = ends.map(free => {
    const lines = Math.max(free.length, 1);
    const height = Math.max(dense ? LINE : LEAST, Math.min(HIGHEST, lines * LINE));
    const placed = { top, height, line: height / lines };
    top += height + GAP;
    return placed;
  });
  const line = new Int32Array(lane.length);
  for (let i = 0; i < lane.length; i++) line[i] = lineOf.get(lane[i] * n + rollout[i]);
  return { lanes, line, height: Math.max(top, LEAST) };
}

// By lane the stretches in which no span runs, as [from, to] milliseconds. kinds: those that count as work.
export function idle(answer, kinds) {
  const { lane, kind, start, ms } = answer.spans;
  const working = answer.lanes.map(() => []);
  for (let i = 0; i < lane.length; i++) if (kinds.has(kind[i])) working[lane[i]].push([start[i], start[i] + ms[i]]);
  return working.map(own => {
    const gaps = [];
    let reached = 0;
    for (const [from, to] of own.sort((a, b) => a[0] - b[0])) {
      if (from > reached) gaps.push([reached, from]);
      reached = Math.max(reached, to);
    }
    if (reached < answer.ms) gaps.push([reached, answer.ms]);
    return gaps;
  });
}

// Round times for an axis of so many milliseconds: at most `most` of them.
export function ticks(from, to, most) {
  const size = SIZES.find(each => (to - from) / each <= most) || to - from || 1;
  const found = [];
  for (let at = Math.ceil(from / size) * size; at <= to; at += size) found.push(at);
  return found;
}
