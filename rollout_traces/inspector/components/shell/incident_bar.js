// The open incidents of the run and split, in a line under the top: since when, whose; mute, acknowledge. The line is there
// before anything is known, so that no page moves when it is drawn.

import { ghost, h, redrawn, replace } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { toRows } from "../../lib/going.js";
import { setUsual } from "../../lib/pages.js";
import { latest } from "../../lib/remote.js";
import * as state from "../../lib/state.js";
import { inert, spoken } from "../../lib/text.js";

const newest = latest();
let asked = "";
let listed = [];
let at = 0;
let all = false;
let unfolded = false;

const isQuiet = each => each.muted || each.acknowledged !== null;

// What the bar takes of a page's height: on a narrow window it has several lines.
const measure = node => document.documentElement.style.setProperty("--rt-bar", `${node.offsetHeight}px`);
const measured = new ResizeObserver(([{ target }]) => measure(target));

const isOfRun = now => Boolean(now.project && now.run) && now.page !== "projects";

export function placeIncidents(root, now) {
  const node = root.querySelector(".rt-incidents");
  node.hidden = !isOfRun(now);
  measure(node);
  measured.observe(node);
}

// Reads the incidents of what is looked at: of another run or split at once, of the same one when `again`.
export function updateIncidents(root, call, now, again = false) {
  const node = root.querySelector(".rt-incidents");
  const wanted = JSON.stringify(state.placeOf(now));
  if (!isOfRun(now)) {
    asked = "";
    return;
  }
  if (wanted === asked && !again) return;
  if (wanted !== asked) {
    at = 0;
    all = false;
    unfolded = false;
    replace(node);
    setUsual(null);
  }
  asked = wanted;
  newest(
    call("incident_bar", state.placeOf(now)),
    answer => {
      setUsual(answer.usual);
      listed = answer.incidents;
      draw(node, call);
    },
    () => {
      setUsual({});
      replace(node);
    },
  );
}

function draw(node, call) {
  const shown = all ? listed : listed.filter(each => !isQuiet(each));
  const quiet = listed.filter(isQuiet).length;
  const showOthers = () => {
    all = !all;
    draw(node, call);
  };
  const others =
    quiet > 0 &&
    ghost(all ? "hide them" : `${quiet} put aside`, showOthers, {
      title: "Incidents that were muted or acknowledged",
      testid: "bar-all",
    });
  node.classList.toggle("rt-unfolded", unfolded);
  if (!shown.length) {
    replace(node, h("span.rt-faint", "No incident is open"), others);
    return;
  }
  at = Math.min(at, Math.max(shown.length - 1, 0));
  const one = shown[at];
  const say = what =>
    newest(
      call("mark_incident", { ...state.placeOf(state.get()), incident: one.name, what }),
      answer => {
        listed = answer.incidents;
        draw(node, call);
      },
      error => {
        node.title = error.message;
      },
    );
  const saying = (what, title) => ghost(what, () => say(what), { title, testid: `bar-${what}` });
  const walk = by => {
    at = (at + by + shown.length) % shown.length;
    draw(node, call);
  };
  replace(
    node,
    h(
      "b#bar-signal",
      { class: `rt-chip rt-chip-${one.severity}`, title: inert(one.signal) },
      inert(spoken(one.signal)),
    ),
    h("span.rt-nowrap", `since step ${number(one.opened)}`),
    one.part ? h("span.rt-ellipsis", inert(one.part)) : null,
    h(
      "button.rt-ellipsis.rt-soft.rt-bar-sentence#bar-sentence",
      {
        "aria-expanded": String(unfolded),
        title: "Shows all of it",
        onclick: () => {
          unfolded = !unfolded;
          redrawn(node, () => draw(node, call));
        },
      },
      inert(one.sentence),
    ),
    shown.length > 1 &&
      h(
        "span.rt-nowrap",
        ghost("‹", () => walk(-1), { "aria-label": "Incident before" }),
        `${at + 1} of ${shown.length}`,
        ghost("›", () => walk(1), { "aria-label": "Next incident", testid: "bar-next" }),
      ),
    ghost("rollouts", () => toRows(one.where, { step: null }), { title: one.where, testid: "bar-rollouts" }),
    one.acknowledged === null
      ? saying("acknowledge", "Seen: not shown again unless another one of it begins")
      : saying("recall", `acknowledged ${one.acknowledged}`),
    one.muted
      ? saying("unmute")
      : saying("mute", "Never shown here for this series and part, also when it comes again"),
    others,
  );
}
