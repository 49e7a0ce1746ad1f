// Lanes of time on a canvas: a bar a span, coloured by weight version or kind; what is under the pointer is said.

import { h, replace } from "../../lib/dom.js";
import { number, percent, seconds } from "../../lib/format.js";
import { inert } from "../../lib/text.js";
import { idle, layout, ticks } from "./layout.js";

const AXIS = 22;
const BELOW = 12;
const STRIP = 3;
const HUES = [265, 330, 215, 295, 10, 240];
const BUSY = new Set(["prefill", "generate"]);

// Colours of the page's theme, and one a version, in turn.
export function palette(answer) {
  const style = getComputedStyle(document.documentElement);
  const of = name => style.getPropertyValue(name).trim();
  const dark = document.documentElement.dataset.rtTheme === "dark";
  const known = answer.spans.version.filter(version => version >= 0);
  const oldest = known.reduce((low, version) => Math.min(low, version), Infinity);
  const newest = known.reduce((high, version) => Math.max(high, version), -1);
  const version = value =>
    value < 0 ? of("--rt-assistant") : `oklch(${dark ? 0.72 : 0.6} 0.15 ${HUES[(value - oldest) % HUES.length]})`;
  return {
    version,
    versions:
      newest < 0 ? [] : Array.from({ length: Math.min(newest - oldest + 1, 8) }, (_, i) => newest - i).reverse(),
    kind: { queue: of("--rt-unknown"), tool: of("--rt-tool"), score: of("--rt-high") },
    ink: of("--rt-ink"),
    faint: of("--rt-faint"),
    line: of("--rt-line"),
    sunken: of("--rt-sunken"),
    error: of("--rt-error"),
    low: of("--rt-low"),
    panel: of("--rt-panel"),
  };
}

export class LanesCanvas {
  // options: {open(rollout, turn), dense: lanes as low as a line}
  constructor(answer, options) {
    this.answer = answer;
    this.options = options;
    this.placed = layout(answer, options);
    this.from = 0;
    this.to = Math.max(answer.ms, 1);
    this.canvas = h("canvas.rt-lanes-canvas#lanes-canvas", { role: "img", "aria-label": this.said() });
    this.card = h("div.rt-card-float.rt-lanes-card#lanes-card", { hidden: true });
    this.names = h(
      "div.rt-lanes-names",
      { style: { "padding-top": `${options.dense ? AXIS - 3 : AXIS}px` } },
      this.nameList(),
    );
    this.whole = h(
      "button.rt-ghost.rt-lanes-whole#lanes-whole",
      { hidden: true, onclick: () => this.zoom(0, answer.ms) },
      "whole time",
    );
    this.legend = h("div.rt-lanes-legend#lanes-legend");
    const field = h("div.rt-lanes-field", this.canvas, this.whole);
    this.root = h("div", h("div.rt-lanes-drawn", this.names, field, this.card), this.legend);
    this.listen();
    this.sized = new ResizeObserver(() => this.canvas.clientWidth !== this.width && this.draw());
    this.sized.observe(this.canvas);
    this.themed = new MutationObserver(() => (this.root.isConnected ? this.draw() : this.forget()));
    this.themed.observe(document.documentElement, { attributeFilter: ["data-rt-theme"] });
  }

  said() {
    const { lanes, spans, ms, tail } = this.answer;
    return `${number(spans.lane.length)} spans in ${number(lanes.length)} lanes over ${seconds(ms / 1000)}${tail ? `; ${tail.text}` : ""}`;
  }

  nameList() {
    return this.answer.lanes.map((lane, at) => {
      const { height } = this.placed.lanes[at];
      const figure = this.answer.by === "rollout" ? seconds(lane.busy) : `idle ${percent(lane.idle)}`;
      return h(
        "div.rt-lane-name#lane-name",
        {
          style: { height: `${height + 6}px` },
          title: `${inert(lane.name)}: ${number(lane.n_rollouts)} rollouts, ${number(lane.n_spans)} spans, ${seconds(lane.busy)} busy`,
        },
        h("span.rt-ellipsis", inert(lane.name)),
        h("span.rt-faint.rt-nowrap", figure),
      );
    });
  }

  zoom(from, to) {
    this.from = Math.max(from, 0);
    this.to = Math.max(Math.min(to, this.answer.ms), this.from + 1);
    this.whole.hidden = this.from === 0 && this.to >= this.answer.ms;
    this.draw();
  }

  x(ms) {
    return ((ms - this.from) / (this.to - this.from)) * this.width;
  }

  draw() {
    const begun = performance.now();
    const { canvas, answer, placed } = this;
    this.width = canvas.clientWidth;
    const scale = window.devicePixelRatio || 1;
    const height = placed.height + AXIS + (this.options.dense && answer.phases.length ? BELOW : 0);
    canvas.style.height = `${height}px`;
    canvas.width = Math.max(Math.round(this.width * scale), 1);
    canvas.height = Math.max(Math.round(height * scale), 1);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    this.colours = palette(answer);
    replace(this.legend, legend(answer, this.colours));
    this.drawBehind(pen);
    this.drawSpans(pen);
    this.drawAbove(pen);
    this.drawnIn = performance.now() - begun;
    canvas.dataset.drawnIn = this.drawnIn.toFixed(1);
  }

  drawBehind(pen) {
    const { answer, placed, colours } = this;
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (const { top, height } of placed.lanes) {
      pen.fillStyle = colours.sunken;
      pen.fillRect(0, AXIS + top, this.width, height);
    }
    if (answer.tail) {
      pen.fillStyle = colours.low;
      pen.globalAlpha = 0.12;
      pen.fillRect(
        this.x(answer.tail.begins),
        AXIS,
        this.x(answer.tail.ends) - this.x(answer.tail.begins),
        placed.height,
      );
      pen.globalAlpha = 1;
    }
    for (const at of ticks(this.from, this.to, Math.max(this.width / 90, 2))) {
      pen.fillStyle = colours.line;
      pen.fillRect(this.x(at), AXIS - 4, 1, placed.height + 4);
      pen.fillStyle = colours.faint;
      pen.fillText(seconds(at / 1000).replace(".0 ", " "), Math.min(this.x(at) + 3, this.width - 46), 8);
    }
  }

  // Bars of one colour after another: changing the colour costs more than a bar. Whole pixels: blurred edges cost as much.
  drawSpans(pen) {
    const { kind, version, start, ms, lane, error } = this.answer.spans;
    const { kinds } = this.answer;
    const byColour = new Map();
    for (let i = 0; i < lane.length; i++) {
      if (start[i] > this.to || start[i] + ms[i] < this.from) continue;
      const key = kind[i] * 1e6 + (this.colours.kind[kinds[kind[i]]] ? 0 : version[i] + 1);
      if (!byColour.has(key)) byColour.set(key, []);
      byColour.get(key).push(i);
    }
    const painted = new Set();
    for (const spans of byColour.values()) {
      const name = kinds[kind[spans[0]]];
      pen.fillStyle = this.colours.kind[name] || this.colours.version(version[spans[0]]);
      pen.globalAlpha = name === "prefill" ? 0.5 : 1;
      painted.clear();
      for (const i of spans) {
        const [x, y, w, height] = this.box(i);
        if (w === 1) {
          const pixel = x * 65536 + y;
          if (painted.has(pixel)) continue;
          painted.add(pixel);
        }
        pen.fillRect(x, y, w, height);
      }
    }
    pen.globalAlpha = 1;
    pen.fillStyle = this.colours.error;
    for (let i = 0; i < lane.length; i++)
      if (error[i] >= 0) {
        const [x, y, w, height] = this.box(i);
        pen.fillRect(x + w - 2, y, 2, height);
      }
  }

  box(i) {
    const { start, ms, lane } = this.answer.spans;
    const { top, line } = this.placed.lanes[lane[i]];
    const x = Math.round(this.x(start[i]));
    const y = Math.round(AXIS + top + this.placed.line[i] * line);
    const wide = Math.round(this.x(start[i] + ms[i])) - x;
    return [x, y, Math.max(wide, 1), Math.max(Math.floor(line) - (line > 4 ? 1 : 0), 1)];
  }

  drawAbove(pen) {
    const { answer, placed, colours } = this;
    const { kinds } = answer;
    const works = new Set(kinds.map((name, at) => at).filter(at => answer.by !== "engine" || BUSY.has(kinds[at])));
    pen.fillStyle = colours.faint;
    if (answer.by !== "rollout")
      idle(answer, works).forEach((gaps, at) => {
        const y = AXIS + placed.lanes[at].top + placed.lanes[at].height;
        for (const [from, to] of gaps) pen.fillRect(this.x(from), y, this.x(to) - this.x(from), STRIP);
      });
    for (const change of answer.changes) {
      const { top, height } = placed.lanes[change.lane];
      const x = this.x(change.at);
      const wide = pen.measureText(`v${change.version}`).width + 4;
      const left = Math.min(x + 1, this.width - wide);
      pen.fillStyle = colours.panel;
      pen.fillRect(left, AXIS + top, wide, 10);
      pen.fillStyle = colours.ink;
      for (let y = 0; y < height; y += 5) pen.fillRect(x, AXIS + top + y, 1, 3);
      pen.fillText(`v${change.version}`, left + 2, AXIS + top + 5);
    }
    pen.fillStyle = colours.ink;
    for (const phase of answer.phases) {
      const [x, end] = [this.x(phase.start), this.x(phase.end)];
      pen.globalAlpha = 0.16;
      pen.fillRect(x, AXIS, end - x, placed.height);
      pen.globalAlpha = 1;
      pen.fillRect(x, AXIS - 5, Math.max(end - x, 2), 4);
      this.namePhase(pen, `${inert(phase.name)} ${number(phase.step)}`, x, end);
    }
  }

  // Below low lanes; else upright where they are high enough, or along the phase where that is long enough.
  namePhase(pen, text, x, end) {
    const bottom = AXIS + this.placed.height;
    const long = pen.measureText(text).width + 8;
    if (this.options.dense) pen.fillText(text, Math.min(x, this.width - long), bottom + BELOW / 2);
    else if (long <= this.placed.height) {
      pen.save();
      pen.translate(x + 7, bottom - 4);
      pen.rotate(-Math.PI / 2);
      pen.fillText(text, 0, 0);
      pen.restore();
    } else if (long <= end - x) pen.fillText(text, x + 4, bottom - 7);
  }

  // The span at a place of the canvas; the last drawn one where several are.
  at(x, y) {
    const { lane } = this.answer.spans;
    for (let i = lane.length - 1; i >= 0; i--) {
      const [left, top, wide, height] = this.box(i);
      if (x >= left - 1 && x <= left + wide + 1 && y >= top && y <= top + height) return i;
    }
    return -1;
  }

  listen() {
    let grabbed = null;
    const place = event => {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const timeAt = x => this.from + (x / this.width) * (this.to - this.from);
    this.canvas.addEventListener("pointerdown", event => {
      [grabbed] = place(event);
    });
    this.canvas.addEventListener("pointerup", event => {
      const [x, y] = place(event);
      if (grabbed !== null && Math.abs(x - grabbed) > 6)
        this.zoom(...[timeAt(grabbed), timeAt(x)].sort((a, b) => a - b));
      else {
        const i = this.at(x, y);
        if (i >= 0) this.options.open(this.answer.rollouts[this.answer.spans.rollout[i]], this.answer.spans.turn[i]);
      }
      grabbed = null;
    });
    this.canvas.addEventListener("pointermove", event => this.say(this.at(...place(event)), event));
    this.canvas.addEventListener("pointerleave", () => {
      this.card.hidden = true;
    });
  }

  say(i, event) {
    this.card.hidden = i < 0;
    this.canvas.style.cursor = i < 0 ? "crosshair" : "pointer";
    if (i < 0) return;
    const { answer } = this;
    const s = answer.spans;
    const rollout = answer.rollouts[s.rollout[i]];
    const name = s.name[i] >= 0 ? ` ${inert(answer.names[s.name[i]])}` : "";
    replace(
      this.card,
      h("b", `${answer.kinds[s.kind[i]]}${name}, ${seconds(s.ms[i] / 1000)}`),
      h(
        "div",
        `from ${seconds(s.start[i] / 1000)}${s.turn[i] >= 0 ? `, turn ${s.turn[i]}` : ""}${s.version[i] >= 0 ? `, version ${s.version[i]}` : ""}`,
      ),
      h(
        "div.rt-soft",
        `step ${number(rollout.step)}, group ${number(rollout.group)}, sample ${number(rollout.sample)}${rollout.id ? "" : ", not kept"}`,
      ),
      s.error[i] >= 0 && h("div.rt-error-text", inert(answer.names[s.error[i]])),
    );
    this.card.style.left = `${Math.min(event.clientX + 14, window.innerWidth - 270)}px`;
    this.card.style.top = `${Math.min(event.clientY + 14, window.innerHeight - 100)}px`;
  }

  forget() {
    this.sized.disconnect();
    this.themed.disconnect();
    this.card.remove();
  }
}

// What the colours mean.
function legend(answer, colours) {
  const seen = new Set(answer.spans.kind.map(kind => answer.kinds[kind]));
  const entry = (colour, text) => h("span.rt-lanes-key", h("i", { style: { background: colour } }), text);
  const versions = colours.versions.map(version =>
    entry(colours.version(version), `sampling, version ${number(version)}`),
  );
  return [
    seen.has("generate") && !versions.length ? entry(colours.version(-1), "sampling, version unobserved") : versions,
    Object.entries(colours.kind)
      .filter(([kind]) => seen.has(kind))
      .map(([kind, colour]) => entry(colour, kind)),
    answer.spans.error.some(name => name >= 0) ? entry(colours.error, "an error, at its end") : null,
    answer.tail ? entry(`color-mix(in oklab, ${colours.low} 25%, transparent)`, "the tail") : null,
    answer.by === "rollout" ? null : entry(colours.faint, "idle, below a lane"),
  ];
}
