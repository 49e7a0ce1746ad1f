// What people said of a rollout: labels as chips, notes below them, and adding one from the keyboard.

import { ghost, h, openDialog, replace } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { inert } from "../../lib/text.js";

const placeOf = ({ turn = null, start = null, stop = null }) =>
  start !== null ? `tokens ${number(start)}–${number(stop - 1)}` : turn !== null ? `turn ${turn}` : "";

// The turns or tokens that are selected with the mouse, else those that are named by the address.
function selectedPlace(view, token) {
  const selection = getSelection();
  const at = node =>
    Number((node?.nodeType === 1 ? node : node?.parentElement)?.closest?.("[data-i]")?.dataset.i ?? NaN);
  const ends =
    selection && !selection.isCollapsed
      ? [at(selection.anchorNode), at(selection.focusNode)].filter(Number.isInteger)
      : [];
  if (ends.length) return { start: Math.min(...ends), stop: Math.max(...ends) + 1 };
  if (token !== undefined && token !== null) return { start: Number(token), stop: Number(token) + 1 };
  return view && view.turn >= 0 ? { turn: view.turn } : {};
}

export class Labels {
  // doing: {call, request(): project, run and split; view(): the TranscriptView; token(): the token of the address}; null in a shared file
  constructor(rollout, doing) {
    this.rollout = rollout;
    this.doing = doing;
    this.data = rollout.labels || { labels: [], names: [], may_label: false, author: "" };
    this.root = h("div.rt-labels#labels");
    this.draw();
  }

  get open() {
    return Boolean(this.doing && this.data.may_label);
  }

  draw() {
    const { labels: entries } = this.data;
    const labels = entries.filter(entry => entry.kind === "label");
    const notes = entries.filter(entry => entry.kind === "note");
    const where = entry => placeOf(entry) && ghost(placeOf(entry), () => this.goTo(entry));
    const off = entry =>
      this.open &&
      entry.may_remove &&
      ghost("×", () => this.send({ kind: "removed", text: entry.id }), {
        title: "Take it back",
        "aria-label": "Take it back",
        testid: "label-remove",
      });
    const byWhom = entry => `${entry.author}, ${entry.time.slice(0, 16).replace("T", " ")} UTC`;
    replace(
      this.root,
      labels.map(entry =>
        h(
          "span.rt-chip.rt-label-chip#label",
          { title: inert(byWhom(entry)), dataset: { label: entry.text } },
          inert(entry.text),
          where(entry),
          off(entry),
        ),
      ),
      this.open && [
        ghost("label", () => this.ask("label"), { title: "Label it (q)", testid: "label-button" }),
        ghost("note", () => this.ask("note"), { title: "Write a note (u)", testid: "note-button" }),
      ],
      notes.map(entry =>
        h("p.rt-label-note#note", h("b", inert(entry.author)), where(entry), " ", inert(entry.text), off(entry)),
      ),
    );
    this.root.hidden = !this.open && !entries.length;
  }

  goTo(entry) {
    const view = this.doing?.view();
    if (!view) return;
    if (entry.start !== null) {
      view.options.onChange({ view: "tokens" });
      view.goTo(entry.start);
    } else if (entry.turn !== null) view.goToTurn(entry.turn);
  }

  async send(what) {
    this.data = await this.doing.call("annotate", { ...this.doing.request(), id: this.rollout.id, ...what });
    this.draw();
  }

  // Others may have labelled it meanwhile.
  async again() {
    if (!this.doing) return;
    this.data = await this.doing
      .call("labels", { ...this.doing.request(), id: this.rollout.id })
      .catch(() => this.data);
    this.draw();
  }

  ask(kind) {
    if (!this.open) return;
    const place = selectedPlace(this.doing.view(), this.doing.token());
    const whole = h(
      "select.rt-select#label-place",
      { "aria-label": "On what" },
      placeOf(place) ? h("option", { value: "place" }, placeOf(place)) : null,
      h("option", { value: "" }, "the whole rollout"),
    );
    const keep = text => this.send({ kind, text, ...(whole.value ? place : {}) });
    askWords({ kind, names: this.data.names, author: this.data.author, about: whole, keep });
  }
}

// Asks for a label or a note. names: labels in use; about: what it is on, said or chosen; keep(text): a promise.
export function askWords({ kind, names, author, about, keep }) {
  if (document.querySelector(".rt-label-dialog[open]")) return;
  const said = h("p.rt-error-text", { role: "alert" });
  const text =
    kind === "note"
      ? h("textarea.rt-input.rt-label-text#label-text", { rows: 4, "aria-label": "Note" })
      : h("input.rt-input#label-text", { "aria-label": "Label", autocomplete: "off" });
  const who = h("span.rt-faint#label-author", { title: "The name that your token has" }, `as ${inert(author)}`);
  const done = value =>
    keep(value).then(
      () => dialog.close(),
      error => replace(said, error.message),
    );
  const offered = kind === "label" ? names.slice(0, 9) : [];
  const dialog = openDialog(
    "rt-label-dialog",
    "label-dialog",
    kind === "label" ? "Label" : "Note",
    h(
      "form",
      {
        method: "dialog",
        onsubmit: event => {
          event.preventDefault();
          done(text.value);
        },
      },
      text,
      offered.length > 0 &&
        h.each("div.rt-label-offered", offered, (name, at) =>
          ghost([h("kbd", String(at + 1)), ` ${inert(name)}`], () => done(name), { testid: "label-offered" }),
        ),
      h("div.rt-label-line", about, who, h("button.rt-button#label-keep", { type: "submit" }, "save")),
      said,
    ),
  );
  dialog.addEventListener("keydown", event => {
    if (kind === "note" && event.key === "Enter" && (event.ctrlKey || event.metaKey)) done(text.value);
    const at = Number(event.key) - 1;
    if (event.target === text && kind === "label" && !text.value && offered[at] !== undefined) {
      event.preventDefault();
      done(offered[at]);
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  text.focus();
}
