// Building the page from plain values. Text always becomes a text node: nothing from a rollout is ever
// parsed as HTML.

import { number } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

// A node of a tag with its classes and the name that tests find it by, such as `p.rt-soft#note`; properties come first
// where there are any, then children. An object would be taken for properties: a value of a rollout is given as text, `inert(String(value))`.
function made(create, selector, given) {
  const [kind, testid] = selector.split("#");
  const [tag, ...classes] = kind.split(".");
  const has = Object.getPrototypeOf(given[0] ?? "") === Object.prototype;
  const [props, children] = has ? [given[0], given.slice(1)] : [{}, given];
  const node = create(tag);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  if (testid) node.setAttribute("data-testid", testid);
  if (tag === "button") node.type = "button";
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") node.setAttribute("class", [...classes, value].join(" "));
    else if (key === "dataset") Object.assign(node.dataset, value);
    else if (key === "style") for (const [name, v] of Object.entries(value)) node.style.setProperty(name, v);
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "testid") node.setAttribute("data-testid", value);
    else if (key === "value" || key === "checked") node[key] = value;
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...wanted(children));
  return node;
}

// What is null, undefined, false or an empty text is left out.
const wanted = children => children.flat(3).filter(child => child || child === 0);

export function h(selector, ...given) {
  return made(tag => document.createElement(tag), selector, given);
}

// The last two are items, and what draws one as a child: `h.each("ul", { testid }, names, name => h("li", name))`.
h.each = (selector, ...given) => {
  const [items, draw] = given.splice(-2);
  return h(selector, ...given, items.map(draw));
};

export function svg(selector, ...given) {
  return made(tag => document.createElementNS(SVG, tag), selector, given);
}

export function replace(node, ...children) {
  node.replaceChildren(...wanted(children));
  return node;
}

// Draws the same things anew in a node: the one that the keyboard had reached keeps the focus.
export function redrawn(node, draw) {
  const reached = () => [...node.querySelectorAll("a[href], button, input, select, summary, [tabindex]")];
  const at = reached().indexOf(document.activeElement);
  draw();
  reached()[at]?.focus({ preventScroll: true });
}

export function escapeHtml(text) {
  return text.replace(/[&<>"']/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c]);
}

export function button(label, onclick, props = {}) {
  return h("button", { class: "rt-button", onclick, ...props }, label);
}

// A button that looks like text.
export function ghost(label, onclick, props = {}) {
  return button(label, onclick, { class: "rt-ghost", ...props });
}

// options: [value, text] each; choose(value) is called with what was chosen.
export function select(options, value, choose, props = {}) {
  return h(
    "select",
    { class: "rt-select", onchange: event => choose(event.target.value), ...props },
    options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)),
  );
}

// The same below a label.
export function choice(label, value, options, choose, testid) {
  return h("label.rt-side-field", h("span.rt-label", label), select(options, value, choose, { testid }));
}

export function copyButton(getText, label = "copy") {
  const node = ghost(
    label,
    async event => {
      event.stopPropagation();
      const text = await getText();
      try {
        await navigator.clipboard.writeText(text);
        node.textContent = "copied";
      } catch {
        node.textContent = "blocked by the browser";
      }
      setTimeout(() => {
        node.textContent = label;
      }, 1200);
    },
    { title: "Copy to the clipboard" },
  );
  return node;
}

// One of a few: options: [value, text, title] each; choose(value) is called with what was chosen.
export function segmented(label, chosen, options, choose, testid) {
  return h(
    "div.rt-segmented",
    { role: "group", "aria-label": label },
    options.map(([value, text, title]) =>
      h(
        "button",
        {
          value,
          title,
          "aria-pressed": String(value === chosen),
          testid: `${testid}-${value}`,
          onclick: () => choose(value),
        },
        text,
      ),
    ),
  );
}

// What may be wider than the page, reached by the keyboard too; more: further classes.
export function scrolling(label, node, more = "") {
  return h(`div.rt-table-scroll${more}`, { tabindex: "0", role: "region", "aria-label": label }, node);
}

// A figure of a row; unknown is empty.
export function numberCell(value, show = number) {
  return h("td.rt-num", value === null || value === undefined || Number.isNaN(value) ? "" : show(value));
}

// Opens a dialog with a title, in place of one of its class that is there.
export function openDialog(className, testid, title, ...body) {
  document.querySelector(`.${className}`)?.remove();
  const close = ghost("close", () => dialog.close());
  const dialog = h(`dialog.rt-dialog.${className}`, { testid }, h("div.rt-help-head", h("h2", title), close), body);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// The title of what is shown beside a page, and its buttons.
export function sideHead(title, ...buttons) {
  return h("div.rt-side-head-line", h("h2", title), h("span", buttons));
}

// A part of a page below its title; `note` stands faint beside the title, where there is one.
export function block(selector, title, note, ...inside) {
  return h(selector, h("h2", title, note ? h("span.rt-faint", ` ${note}`) : null), inside);
}

// heads: the texts or cells of the head's one row; rows: those of the body, or what `draw` makes one of.
export function table(props, heads, rows, draw = row => row) {
  const cells = heads.flat().map(head => (typeof head === "string" ? h("th", head) : head));
  return h("table", props, h("thead", h("tr", cells)), h("tbody", rows.map(draw)));
}

// Calls back when an element became wider or narrower, by more than a scroll bar's coming and going.
export function onWidth(node, changed) {
  let width = node.clientWidth;
  new ResizeObserver(() => {
    if (Math.abs(node.clientWidth - width) <= 8) return;
    width = node.clientWidth;
    if (width) changed();
  }).observe(node);
}

export function debounce(wait, action) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...args), wait);
  };
}

export function notice(kind, title, ...body) {
  return h(
    "div",
    { class: `rt-notice rt-notice-${kind}`, role: kind === "error" ? "alert" : "note" },
    h("strong", title),
    body.map(part => h("p", part)),
  );
}
