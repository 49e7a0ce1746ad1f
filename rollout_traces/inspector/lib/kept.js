// What the browser keeps for this page; a private window keeps it for as long as the page is there, or not at all.

export function recalled(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function keep(name, text) {
  try {
    localStorage.setItem(name, text);
  } catch {
    /* nothing is kept */
  }
}
