// From a rollout that was in flight to the stored one.

import { button } from "../../lib/dom.js";
import * as state from "../../lib/state.js";

// The way to the stored rollout; where it has no trace, to its row.
export function landed(each) {
  const patch = each.trace
    ? { page: "rollouts", id: each.trace, live: null }
    : { page: "explore", where: `extra/live = '${each.id}'`, rows: "all", live: null };
  return button("stored", () => state.set(patch), {
    class: "rt-flight-stored",
    testid: "flight-stored",
    title: each.trace ? "Open the stored rollout" : "Stored without a trace: its row among all rollouts",
  });
}
