// Who looks at the page. The token of its address is exchanged for a session key, which this tab keeps in a storage that
// no other port can read, and sends as a header with every call. No cookie opens anything.

const PARAMETER = "access_token";
const HEADER = "X-Rollout-Traces-Session";
const ANSWER_WITHIN = 200;
const root = (window.gradio_config?.root || document.baseURI.replace(/[?#].*$/, "")).replace(/\/$/, "");
const KEPT = `rollout-traces ${new URL(root).pathname}`;

// {name, owner, dashboard: address or null} once it is open.
export const session = { name: "", owner: false, dashboard: null };
let key = null;

// Opens the session: with the token of the address, the key of this tab, or that of another tab.
// Returns null, or why a token has to be asked for: "none", "wrong", "over".
export async function open() {
  sendKey();
  const token = takeToken();
  window.addEventListener("hashchange", () => {
    const given = takeToken();
    if (given) signIn(given).then(() => location.reload());
  });
  if (token !== null) return (await signIn(token)) ? null : "wrong";
  const kept = (key = read());
  if (await isOpen()) return null;
  key = await fromAnotherTab();
  if (key && (await isOpen())) return null;
  write((key = null));
  return kept ? "over" : "none";
}

export async function signIn(token) {
  const answer = await fetch(`${root}/session`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ token }),
  });
  if (!answer.ok) return false;
  const { key: given, ...about } = await answer.json();
  Object.assign(session, about);
  write((key = given));
  offerToOtherTabs();
  return true;
}

async function isOpen() {
  const answer = await fetch(`${root}/session`, { cache: "no-store" });
  if (!answer.ok) return false;
  Object.assign(session, await answer.json());
  write(key);
  offerToOtherTabs();
  return true;
}

// The token leaves the address, and with it the browser's history.
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1));
  const token = given.get(PARAMETER);
  if (token === null) return null;
  given.delete(PARAMETER);
  const rest = given.toString();
  history.replaceState(history.state, "", location.pathname + location.search + (rest ? `#${rest}` : ""));
  return token;
}

function sendKey() {
  const plain = window.fetch.bind(window);
  window.fetch = (what, options = {}) => {
    const address = new URL(what instanceof Request ? what.url : what, document.baseURI).href;
    if (!key || !address.startsWith(`${root}/`)) return plain(what, options);
    const headers = new Headers(options.headers || (what instanceof Request ? what.headers : {}));
    headers.set(HEADER, key);
    return plain(what, { ...options, headers });
  };
}

function read() {
  try {
    return sessionStorage.getItem(KEPT);
  } catch {
    return key;
  }
}

function write(value) {
  try {
    if (value) sessionStorage.setItem(KEPT, value);
    else sessionStorage.removeItem(KEPT);
  } catch {
    /* in a frame without storage it holds until the page is left */
  }
}

// A link that is opened in a tab of its own has an empty storage: a tab of the same address tells it the key.
function fromAnotherTab() {
  if (typeof BroadcastChannel === "undefined") return null;
  return new Promise(resolve => {
    const asking = new BroadcastChannel(KEPT);
    const done = found => {
      asking.close();
      resolve(found);
    };
    asking.onmessage = ({ data }) => {
      if (data?.key) done(data.key);
    };
    asking.postMessage({ wanted: true });
    setTimeout(() => done(null), ANSWER_WITHIN);
  });
}

let offering = null;
function offerToOtherTabs() {
  if (offering || !key || typeof BroadcastChannel === "undefined") return;
  offering = new BroadcastChannel(KEPT);
  offering.onmessage = ({ data }) => {
    if (data?.wanted) offering.postMessage({ key });
  };
}
