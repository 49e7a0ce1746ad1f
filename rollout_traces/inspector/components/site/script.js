// A run as a folder of files: the inspector's own pages over answers that were written down.

import { h, select } from "../../lib/dom.js";
import { catalog } from "../../lib/pages.js";
import * as state from "../../lib/state.js";
import { inert } from "../../lib/text.js";
import { mount as mountRollouts } from "../rollouts/script.js";
import { mount as mountRun } from "../run/script.js";
import { drawFrame } from "../shared/frame.js";
import { answers, read } from "./answers.js";

const PAGES = [
  { name: "run", title: "Run", mount: mountRun },
  { name: "rollouts", title: "Rollouts", mount: mountRollouts },
];

async function start() {
  const about = await read("about");
  const { project, runs } = about.catalog;
  Object.assign(catalog, about.catalog);
  const [run] = runs;
  const refresh = drawFrame({
    pages: PAGES,
    bar: () => [h("b.rt-ellipsis", inert(about.title)), splits(run)],
    made: about.made,
    missing: "That page needs the inspector, where the run is.",
  });
  const server = answers(about);
  for (const { name, mount } of PAGES) mount(document.querySelector(`#rt-${name} > *`), server);
  const place = { project, run: run.name, split: state.get().split || about.splits[0] };
  if (!state.get().page) place.page = "run";
  state.set(place, { fill: true });
  state.subscribe((now, changed) => {
    if (now.page === "explore")
      state.set({ page: "rollouts", scope: "all", rows: null, columns: null, step: now.step }, { fill: true });
    else refresh(changed);
  });
  refresh(new Set(state.KEYS));
}

function splits(run) {
  if (run.splits.length < 2) return null;
  const now = state.get();
  return select(
    run.splits.map(({ name }) => [name, inert(name)]),
    now.split,
    split => state.set({ split }),
    { "aria-label": "Split", testid: "split-select" },
  );
}

start().catch(error =>
  document.body.prepend(
    h("p.rt-notice", { role: "alert" }, `${error.message} A site is served by a web server: python -m http.server.`),
  ),
);
