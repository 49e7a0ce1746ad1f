// Where a button leads: to a rollout, a prompt, the rows of a filter or what differs, whatever was filtered or sorted before.

import { h } from "./dom.js";
import * as state from "./state.js";
import { inert } from "./text.js";

const ALL = { where: null, text: null, sort: null, scope: null };

// How the address names a rollout: by its place in the step, or by its id where it has none.
export function placed({ step = null, group = null, sample = null, id = null }) {
  return group === null || sample === null
    ? { step, group: null, sample: null, id }
    : { step, group, sample, id: null };
}

// Whether it is the rollout that the address names.
export function isNamed({ id, step, group, sample }, now) {
  if (now.id !== undefined) return id === now.id;
  return String(step) === now.step && String(group) === now.group && String(sample) === now.sample;
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

// What differs between A, the rollouts that `more` names, and B, its `against`: the ten steps before where there is none.
export function toExplain(more = {}) {
  state.set({ page: "explain", explain: null, flag: null, steps: null, where: null, against: null, ...more });
}

// A prompt by its key and its first characters, which leads to its rollouts over steps, splits and runs.
export function promptLink({ prompt_key, prompt }, shown) {
  return h(
    "button.rt-plain-link.rt-ellipsis",
    { title: inert(prompt || prompt_key), onclick: () => state.set({ page: "prompts", prompt: prompt_key }) },
    h("b", inert(prompt_key)),
    prompt && shown ? h("span.rt-soft", ` ${inert(prompt.slice(0, shown))}`) : null,
  );
}
