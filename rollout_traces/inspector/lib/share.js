// What is shown as one HTML file, to send to somebody.

import { button, copyButton, ghost, h, openDialog, replace } from "./dom.js";
import { number, plural } from "./format.js";

export function download(text, name, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// Whether this is a shared file: it has no server, and no rows but those that are shown.
export const inFile = () => Boolean(document.getElementById("rt-held"));

// Whether there is no server: a shared file, or a site of files, which has the kept rows of a run.
export const isStatic = () => inFile() || Boolean(document.getElementById("rt-site"));

// call: a page's remote functions; asked(): what the server's `share` takes, at the time of the click. Null where there is no server.
export function shareButton(call, asked) {
  if (isStatic()) return null;
  return ghost("share", () => openShare(call, asked()), {
    title: "As one HTML file that opens from disk",
    testid: "share",
  });
}

function openShare(call, asked) {
  const hidden = h("textarea.rt-input.rt-share-hidden#share-hide", {
    rows: 3,
    "aria-label": "Texts to hide, one a line",
  });
  const said = h("p.rt-soft", { role: "status" });
  const dialog = openDialog(
    "rt-share-dialog",
    "share-dialog",
    "Share as one file",
    h(
      "p.rt-soft",
      "An HTML file with text and tokens inside. It opens from disk without this server and asks nobody for anything.",
    ),
    h("label.rt-soft", "Texts to hide in it, one a line:", hidden),
    said,
    writing("download", "share-download", said, async () => {
      const { html, name } = await call("share", { ...asked, hide: hidden.value.split("\n").filter(Boolean) });
      download(html, name, "text/html");
      dialog.close();
    }),
  );
}

// A button that writes a file; what goes on, or wrong, is said.
function writing(label, testid, said, write) {
  const work = async event => {
    event.target.disabled = true;
    replace(said, "Writing…");
    try {
      await write();
      replace(said);
    } catch (error) {
      replace(said, error.message);
    }
    event.target.disabled = false;
  };
  return button(label, work, { testid });
}

// ask(only_counted): the server's {total, most, lines or null, command} of the rows to export. They are written when they
// are asked for: a thousand take seconds.
export async function exportDialog(ask) {
  const answer = await ask(true);
  const said = h("p.rt-soft", { role: "status" });
  const write = async () => download((await ask(false)).lines + "\n", "rollouts.jsonl", "application/x-ndjson");
  openDialog(
    "rt-export",
    "export-dialog",
    `Export ${plural(answer.total, "rollout")}`,
    h("p.rt-soft", "On the command line, with a manifest beside the file:"),
    h("pre.rt-code", h("code", answer.command)),
    copyButton(() => answer.command, "copy the command"),
    answer.superseded > 0 && h("p.rt-soft", `${number(answer.superseded)} of them superseded, and marked as such.`),
    answer.total > answer.most
      ? h("p.rt-faint", `More than ${number(answer.most)}: too many for the browser.`)
      : writing("download JSON lines", "download", said, write),
    said,
  );
}
