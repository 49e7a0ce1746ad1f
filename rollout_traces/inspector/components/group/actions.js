// What the samples of a group did, made comparable: equal actions have one letter, and stand in one column.

export const keyOf = ({ kind, name, text, whole = "" }) => `${kind} ${name} ${text}${whole}`;
const sameKind = (a, b) => a.kind === b.kind && a.name === b.name;

// One letter for each different action; `A` is the most frequent.
export function actionLetters(members) {
  const counts = new Map();
  for (const member of members)
    for (const action of member.actions) counts.set(keyOf(action), (counts.get(keyOf(action)) || 0) + 1);
  const ranked = [...counts].sort((a, b) => b[1] - a[1]).map(pair => pair[0]);
  return new Map(
    ranked.map((key, at) => [
      key,
      { at, letter: at < 26 ? String.fromCharCode(65 + at) : String(at + 1), shared: counts.get(key) > 1 },
    ]),
  );
}

// The first action in which two samples differ; null where they do not.
export function firstDifference(best, worst) {
  const length = Math.max(best.actions.length, worst.actions.length);
  for (let i = 0; i < length; i++) {
    const [a, b] = [best.actions[i], worst.actions[i]];
    if (!a || !b || keyOf(a) !== keyOf(b)) return { at: i, best: a || null, worst: b || null };
  }
  return null;
}

// For each sample its actions in shared columns, null where it did nothing there. Samples are laid one after
// another on what is there: equal actions, and calls of one tool, share a column; the others get their own.
export function aligned(members) {
  let columns = [];
  const rows = [];
  for (const { actions } of members) {
    const pairs = matched(columns, actions);
    const merged = [];
    const places = [];
    let [c, a] = [0, 0];
    for (const [column, action] of [...pairs, [columns.length, actions.length]]) {
      for (; c < column; c++) merged.push({ from: c, actions: columns[c] });
      for (; a < action; a++) {
        places[a] = merged.length;
        merged.push({ from: null, actions: [actions[a]] });
      }
      if (column === columns.length) break;
      places[a] = merged.length;
      merged.push({ from: c, actions: [...columns[c], actions[a]] });
      c += 1;
      a += 1;
    }
    const moved = new Map(merged.map((entry, to) => [entry.from, to]));
    for (const row of rows) row.places = row.places.map(place => moved.get(place));
    rows.push({ actions, places });
    columns = merged.map(entry => entry.actions);
  }
  return rows.map(({ actions, places }) => {
    const row = new Array(columns.length).fill(null);
    places.forEach((place, at) => {
      row[place] = actions[at];
    });
    return row;
  });
}

// Pairs of column and action, in order, with the greatest likeness: 3 for an equal action, 1 for a call of the
// same tool or another answer.
function matched(columns, actions) {
  const likeness = (column, action) =>
    column.some(each => keyOf(each) === keyOf(action)) ? 3 : sameKind(column[0], action) ? 1 : 0;
  const best = Array.from({ length: columns.length + 1 }, () => new Float64Array(actions.length + 1));
  for (let c = columns.length - 1; c >= 0; c--) {
    for (let a = actions.length - 1; a >= 0; a--) {
      const like = likeness(columns[c], actions[a]);
      best[c][a] = Math.max(best[c + 1][a], best[c][a + 1], like ? best[c + 1][a + 1] + like : 0);
    }
  }
  const pairs = [];
  for (let c = 0, a = 0; c < columns.length && a < actions.length;) {
    const like = likeness(columns[c], actions[a]);
    if (like && best[c][a] === best[c + 1][a + 1] + like) pairs.push([c++, a++]);
    else if (best[c][a] === best[c + 1][a]) c++;
    else a++;
  }
  return pairs;
}
