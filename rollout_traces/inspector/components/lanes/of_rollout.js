// When the turns of one rollout ran, and those of the others of its episode: above its conversation.

import { h, replace } from "../../lib/dom.js";
import { plural, seconds } from "../../lib/format.js";
import { inert } from "../../lib/text.js";
import { LanesCanvas } from "./canvas.js";

// call: asks the page's functions; request: what `lanes` is asked; goTo(turn): goes to a sampled turn; open(rollout): to another.
// Nothing where the rollout has no spans.
export function timeline(rollout, { call, request, goTo, open }) {
  const { group, sample } = rollout.metadata;
  if (!rollout.n_spans || group === undefined || sample === undefined) return null;
  const body = h("div", h("div.rt-loading", "\u2026"));
  const title = h("summary", "Timeline");
  const root = h("details.rt-lanes-of-rollout#timeline", { open: true }, title, body);
  call("lanes", { ...request, group, sample, by: "rollout" }).then(
    answer => {
      const own = each => each.group === group && each.sample === sample;
      const drawn = new LanesCanvas(answer, {
        dense: true,
        open: (each, turn) => (own(each) ? turn >= 0 && goTo(turn) : open(each)),
      });
      const others = answer.rollouts.length - 1;
      title.textContent = `Timeline of ${seconds(answer.ms / 1000)}${others ? `, with ${plural(others, "other")} of its episode` : ""}`;
      const said = answer.said.map(text => h("p.rt-lanes-said", inert(text)));
      replace(body, drawn.root, said);
      drawn.draw();
    },
    error => replace(body, h("p.rt-soft", error.message)),
  );
  return root;
}
