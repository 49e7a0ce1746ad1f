// The step: first, previous, a number to type, next, last, and following a live run.

import { button, h, replace } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { shortcut } from "../../lib/keyboard.js";
import { splitOf } from "../../lib/pages.js";
import { isStatic } from "../../lib/share.js";
import * as state from "../../lib/state.js";

export function nearest(steps, wanted) {
  return steps.reduce((best, step) => (Math.abs(step - wanted) < Math.abs(best - wanted) ? step : best), steps[0]);
}

export function move(by) {
  const steps = splitOf(state.get())?.steps || [];
  if (!steps.length) return;
  const now = Number(state.get().step);
  const at = steps.includes(now) ? steps.indexOf(now) : steps.findLastIndex(step => step < now) + (by < 0 ? 1 : 0);
  const next = steps[Math.min(Math.max(at + by, 0), steps.length - 1)];
  state.set({ step: next, follow: null });
}

export function goTo(wanted) {
  const steps = splitOf(state.get())?.steps || [];
  if (steps.length && Number.isFinite(wanted)) state.set({ step: nearest(steps, wanted), follow: null });
}

export function toggleFollow() {
  const steps = splitOf(state.get())?.steps || [];
  state.set(state.get().follow ? { follow: null } : { follow: 1, step: steps.at(-1) });
}

// The keys of a page that shows a step: `[` and `]`, and the arrows where the page needs them for nothing else.
export function stepKeys(here, { arrows = true } = {}) {
  shortcut(["[", ...(arrows ? ["ArrowLeft"] : [])], "Previous step", () => move(-1), here);
  shortcut(["]", ...(arrows ? ["ArrowRight"] : [])], "Next step", () => move(1), here);
}

// Draws the pager; false where the page waits: there is no step yet, which `nothing` is told, or it goes to the nearest one.
export function atStep(root, now, nothing) {
  drawStepPager(root, now);
  const steps = splitOf(now)?.steps || [];
  if (!steps.length) nothing();
  else if (!steps.includes(Number(now.step)))
    state.set({ step: now.step === undefined ? steps.at(-1) : nearest(steps, Number(now.step)) }, { fill: true });
  else return true;
  return false;
}

export function drawStepPager(root, now) {
  const steps = splitOf(now)?.steps || [];
  const here = Number(now.step);
  const arrow = (label, by, title, testid) =>
    button(label, () => move(by), {
      title,
      "aria-label": title,
      testid,
      disabled: !steps.some(step => (by < 0 ? step < here : step > here)),
    });
  const input = h("input.rt-input.rt-step-number#step-input", {
    inputmode: "numeric",
    "aria-label": "Step",
    value: now.step ?? "",
    onfocus: event => event.target.select(),
    onkeydown: event => {
      if (event.key !== "Enter") return;
      const wanted = parseInt(event.target.value, 10);
      if (Number.isFinite(wanted)) {
        event.target.blur();
        goTo(wanted);
      } else event.target.value = state.get().step ?? "";
    },
    onblur: event => {
      event.target.value = state.get().step ?? "";
    },
  });
  if (root.contains(document.activeElement) && document.activeElement.matches(".rt-step-number")) return;
  replace(
    root,
    h("span.rt-step-word", "Step"),
    arrow("«", -1e9, "First step ({)", "step-first"),
    arrow("‹", -1, "Previous step ([)", "step-previous"),
    input,
    arrow("›", 1, "Next step (])", "step-next"),
    arrow("»", 1e9, "Last step (})", "step-last"),
    h("span.rt-faint.rt-nowrap", steps.length ? `of ${number(steps.at(-1))}` : "no steps yet"),
    !isStatic() &&
      button("follow", toggleFollow, {
        class: "rt-ghost rt-follow",
        "aria-pressed": String(Boolean(now.follow)),
        title: "Follow the latest step of a live run (l)",
        testid: "follow",
      }),
  );
}
