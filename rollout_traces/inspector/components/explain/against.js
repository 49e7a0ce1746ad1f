// What A is compared with, as a text of the address: `run=b&steps=1:10`; empty for the ten steps before A.

import * as state from "../../lib/state.js";

export const KINDS = {
  before: "the ten steps before",
  rest: "the rest, without A’s filter",
  steps: "other steps",
  split: "another split",
  run: "another run",
  where: "another filter",
};
const NAMES = ["rest", "steps", "split", "run", "where"];

export function parseAgainst(text) {
  const query = new URLSearchParams(text || "");
  return Object.fromEntries(NAMES.filter(name => query.get(name) !== null).map(name => [name, query.get(name)]));
}

export function formatAgainst(parts) {
  const query = new URLSearchParams();
  for (const name of NAMES) if (parts[name] !== undefined && parts[name] !== null) query.set(name, parts[name]);
  return query.toString() || null;
}

export function kindOf(parts) {
  return ["rest", "run", "split", "where", "steps"].find(name => name in parts) || "before";
}

// What the server is asked: A in the request itself, what B has different of it under names with `against_`.
export function asked(now) {
  return {
    ...state.placeOf(now),
    steps: now.steps || "",
    step: now.steps || now.step === undefined ? null : Number(now.step),
    where: now.where || "",
    ...Object.fromEntries(Object.entries(parseAgainst(now.against)).map(([name, value]) => [`against_${name}`, value])),
  };
}
