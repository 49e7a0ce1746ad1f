// Several rollouts of the list at once: chosen by click and key, then labelled, noted, compared or exported together.

import { ghost, h, replace } from "../../lib/dom.js";
import { plural } from "../../lib/format.js";
import { exportDialog } from "../../lib/share.js";
import { askWords } from "../labels/script.js";

const MOST = 200;

export class Selection {
  // doing: {call, request(): project, run and split; listed(): the ids of the list; labels(): the names and author of the
  // rollout that is open, null where nobody may label; compare(a, b); changed(): rows wear new labels}
  constructor(root, list, doing) {
    Object.assign(this, { root, list, doing, ids: new Set(), last: null, said: "" });
  }

  // A click on a card with a modifier key chooses it, or all from the last one to it. True where it did.
  clicked(id, { ctrlKey, metaKey, shiftKey }) {
    if (shiftKey && this.last !== null) this.upTo(id);
    else if (ctrlKey || metaKey || shiftKey) this.toggle(id);
    else return false;
    return true;
  }

  toggle(id) {
    if (!this.ids.delete(id)) this.ids.add(id);
    this.last = id;
    this.draw();
  }

  upTo(id) {
    const listed = this.doing.listed();
    const [from, to] = [listed.indexOf(this.last), listed.indexOf(id)].sort((a, b) => a - b);
    if (from < 0) return this.toggle(id);
    for (const each of listed.slice(from, to + 1)) this.ids.add(each);
    return this.draw();
  }

  all() {
    for (const id of this.doing.listed()) this.ids.add(id);
    this.draw();
  }

  clear() {
    this.ids.clear();
    this.last = null;
    this.draw();
  }

  // said: of what was just done, until another one is chosen.
  draw(said = "") {
    this.said = said;
    this.again();
  }

  // The list was drawn anew.
  again() {
    const over = [...this.ids].slice(MOST);
    for (const id of over) this.ids.delete(id);
    if (over.length) this.said = `${MOST} at most are chosen, ${plural(over.length, "further rollout")} left out`;
    for (const node of this.list.querySelectorAll(".rt-sample")) {
      const chosen = this.ids.has(node.dataset.id);
      node.classList.toggle("rt-chosen", chosen);
      node.toggleAttribute("data-chosen", chosen);
    }
    this.root.hidden = !this.ids.size && !this.said;
    const action = (name, work, title) => ghost(name, work, { title, testid: `selection-${name}` });
    replace(
      this.root,
      h("b", { "aria-live": "polite" }, `${plural(this.ids.size, "rollout")} chosen`),
      this.doing.labels() &&
        this.ids.size > 0 && [
          action("label", () => this.say("label"), "Label them all"),
          action("note", () => this.say("note"), "Note them all"),
        ],
      this.ids.size === 2 && action("compare", () => this.doing.compare(...this.ids), "Side by side"),
      this.ids.size ? action("export", () => this.export(), "As JSON lines, or by a command") : null,
      action("clear", () => this.clear(), "Choose none"),
      this.said ? h("span.rt-faint", { role: "status" }, this.said) : null,
    );
  }

  say(kind) {
    const { names, author } = this.doing.labels();
    askWords({ kind, names, author, about: plural(this.ids.size, "rollout"), keep: text => this.keep(kind, text) });
  }

  async keep(kind, text) {
    const ids = [...this.ids];
    const [id, ...further] = ids;
    await this.doing.call("annotate", { ...this.doing.request(), id, kind, text, further });
    this.doing.changed();
    this.draw(`${kind === "note" ? "a note" : text} on ${plural(ids.length, "rollout")}`);
  }

  async export() {
    const asked = { ...this.doing.request(), ids: [...this.ids] };
    const { call } = this.doing;
    await exportDialog(only_counted => call("export_chosen", { ...asked, only_counted })).catch(error =>
      this.draw(error.message),
    );
  }
}
