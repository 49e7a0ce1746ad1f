// Building the page from plain values. Text always becomes a text node: nothing from a rollout is ever
// parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

// A node of a tag with its classes, such as `p.rt-soft`; properties come first where there are any, then children.
function made(create, selector, given) {
  const [tag, ...classes] = selector.split(".");
  const has = Object.getPrototypeOf(given[0] ?? "") === Object.prototype;
  const [props, children] = has ? [given[0], given.slice(1)] : [{}, given];
  const node = create(tag);
  if (classes.length) node.setAttribute("class", classes.join(" "));
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
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

export function h(selector, ...given) {
  return made(tag => document.createElement(tag), selector, given);
}

export function svg(selector, ...given) {
  return made(tag => document.createElementNS(SVG, tag), selector, given);
}

export function replace(node, ...children) {
  node.replaceChildren(...children.flat(3).filter(child => child !== null && child !== undefined && child !== false));
  return node;
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

// heads, rows: the cells of the head's one row, and the rows of the body.
export function table(props, heads, rows) {
  return h("table", props, h("thead", h("tr", heads)), h("tbody", rows));
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
