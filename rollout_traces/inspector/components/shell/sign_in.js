// What a visitor without a session sees: how to get one, and a field for the token.

import { h, replace } from "../../lib/dom.js";
import { signIn } from "../../lib/session.js";

const SEEN = {
  none: "",
  wrong: "The token in this address is not this server's: it may have been started anew since.",
  over: "This session ended with the server that it was opened on: it has been started anew since.",
};

// why: as `open` of lib/session.js says it. Returns when a token was taken.
export function signedIn(root, why) {
  return new Promise(resolve => {
    const said = h("p", { role: "status" }, SEEN[why]);
    const token = h("input.rt-input", { type: "password", autocomplete: "off", "aria-label": "Token", required: true });
    const ask = async event => {
      event.preventDefault();
      if (!(await signIn(token.value))) return replace(said, SEEN.wrong.replace("in this address", "given"));
      panel.remove();
      return resolve();
    };
    const panel = h(
      "div.rt-sign-in#sign-in",
      h("h1", "This inspector asks for its token"),
      said,
      h(
        "p",
        "Open the address that ",
        h("code", "rollout-traces show"),
        " printed when it started: it ends in ",
        h("code", "#access_token=…"),
        ". Or put the token in here:",
      ),
      h("form", { onsubmit: ask }, token, " ", h("button.rt-button", { type: "submit" }, "Open")),
      h(
        "p",
        "On a server that was started for you, it is your token of ",
        h("code", "ROLLOUT_TRACES_TOKENS"),
        ", or ",
        h("code", "ROLLOUT_TRACES_TOKEN"),
        "; ask whoever started it.",
      ),
    );
    root.append(panel);
    token.focus();
  });
}
