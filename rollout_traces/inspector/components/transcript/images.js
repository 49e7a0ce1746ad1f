// The images of a turn, fetched from the local store when they come into view.

import { ghost, h, replace } from "../../lib/dom.js";
import { inert } from "../../lib/text.js";

// Stands in a turn's content where an image belongs.
export const MARK = "\ufffc";

// A figure for image `number` of a rollout. fetched(number) promises {type, data: base64}; without it the place is shown
// alone.
export function figure(rollout, number, fetched) {
  const { left_out: reason } = rollout.images[number];
  const caption = h("figcaption.rt-faint", `image ${number + 1}`);
  const node = h("figure.rt-image#image", { dataset: { image: String(number) } }, caption);
  if (reason !== null || !fetched) {
    replace(caption, `image ${number + 1}: ${reason === null ? "not shown here" : `left out, ${inert(reason)}`}`);
    return node;
  }
  new IntersectionObserver((entries, observer) => {
    if (!entries.some(entry => entry.isIntersecting)) return;
    observer.disconnect();
    fetched(number).then(
      image => node.prepend(picture(image, number)),
      error => replace(caption, `image ${number + 1}: ${inert(error.message)}`),
    );
  }).observe(node);
  return node;
}

function picture(image, number) {
  const source = `data:${image.type};base64,${image.data}`;
  const drawn = alt => h("img", { src: source, alt, decoding: "async" });
  const enlarge = () => {
    const dialog = h(
      "dialog.rt-dialog.rt-image-large",
      ghost("close", () => dialog.close()),
      drawn(`image ${number + 1}`),
    );
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  };
  return h("button.rt-image-open", { title: "Enlarge", onclick: enlarge }, drawn(`image ${number + 1} of the rollout`));
}
