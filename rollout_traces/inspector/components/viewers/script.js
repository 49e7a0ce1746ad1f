// Views of one's own of a rollout, each in a frame that reaches neither this page nor the network.

import { ghost, h, replace } from "../../lib/dom.js";
import { inert } from "../../lib/text.js";

const [LEAST, MOST] = [80, 640];

// id: of a rollout; now: its viewer's name, or undefined; choose(name or null).
export function viewersOf(call, place, id, now, choose) {
  const root = h("section.rt-viewers#viewers");
  if (!window.rolloutTraces?.viewers) return root;
  const asked = { ...place, id };
  call("viewers", asked).then(
    ({ names, problems }) => {
      const shown = names.includes(now) ? now : null;
      replace(
        root,
        names.map(name =>
          ghost(inert(name), () => choose(name === shown ? null : name), {
            "aria-pressed": String(name === shown),
            testid: "viewer",
          }),
        ),
        problems.map(said),
        shown ? frame(shown, () => call("viewed", { ...asked, viewer: shown })) : null,
      );
    },
    error => replace(root, said(error.message)),
  );
  return root;
}

const said = text => h("p.rt-faint#viewer-problem", { role: "alert" }, inert(text));

function frame(name, ask) {
  const slot = h("div.rt-viewer-frame", h("p.rt-faint", "Drawing…"));
  ask().then(
    drawn => {
      const node = h("iframe#viewer-frame", {
        sandbox: "allow-scripts",
        title: inert(name),
        referrerpolicy: "no-referrer",
      });
      // once: what the frame goes to by itself is told nothing
      const theme = document.documentElement.dataset.rtTheme;
      node.addEventListener("load", () => node.contentWindow.postMessage({ ...drawn, theme }, "*"), { once: true });
      window.addEventListener("message", function fit({ source, data }) {
        if (!slot.isConnected) window.removeEventListener("message", fit);
        else if (source === node.contentWindow && data?.height > 0)
          node.style.height = `${Math.min(Math.max(data.height + 26, LEAST), MOST)}px`;
      });
      node.src = `${window.rolloutTraces.assets}/viewer.html`;
      replace(slot, node);
    },
    error => replace(slot, said(error.message)),
  );
  return slot;
}
