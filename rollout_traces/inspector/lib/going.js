// Where a button leads: to a rollout, or to the rows of a filter, whatever was filtered or sorted before.

import * as state from "./state.js";

const ALL = { where: null, text: null, sort: null, scope: null };

// How the address names a rollout: by its place in the step, or by its id where it has none.
export function placed({ step = null, group = null, sample = null, id = null }) {
  return group === null || sample === null
    ? { step, group: null, sample: null, id }
    : { step, group, sample, id: null };
}

export function toRollout(rollout, more = {}) {
  state.set({ page: "rollouts", ...ALL, ...placed(rollout), ...more });
}

// The kept rollouts of a filter.
export function toKept(where, more = {}) {
  state.set({ page: "rollouts", ...ALL, where, ...more });
}

// All rows that satisfy a filter, kept or not.
export function toRows(where, more = {}) {
  state.set({ page: "explore", rows: "all", ...ALL, where, ...more });
}
