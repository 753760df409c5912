/** Captions of a video file. */

import { decimal, make, words } from "../elements.js";

const CAPTIONS = 3;

export const caption = {
  kind: "caption",
  path: "caption",
  name: "Caption",
  title: "What happens in the video?",
  lead: "Choose a short clip. The service reads frames from it and writes what it sees.",
  empty: "Choose a video file, or drop one on the field.",
  verb: "Describe it",

  open() {
    const file = make("input", { type: "file", accept: "video/*", id: "clip" });
    const preview = make("video", { controls: true, muted: true, playsInline: true, hidden: true });
    preview.setAttribute("aria-label", "The clip");
    preview.onerror = () => { preview.hidden = true; }; // a format that browsers do not play can still be described
    file.addEventListener("change", () => {
      URL.revokeObjectURL(preview.src);
      preview.hidden = file.files.length === 0;
      if (!preview.hidden) preview.src = URL.createObjectURL(file.files[0]);
    });
    return {
      fields: [make("div.field", {}, make("label", { htmlFor: "clip" }, "Video"), file), preview],
      body: () => {
        if (file.files.length === 0) return null;
        const form = new FormData();
        form.set("file", file.files[0]);
        form.set("num_captions", CAPTIONS);
        form.set("sheet", "true");
        return form;
      },
      show: ({ results: [{ captions, sheet }] }) => ({
        nodes: [...shown(captions), ...(sheet ? [drawn(sheet)] : [])],
        said: captions[0]?.text ?? "no caption",
      }),
    };
  },
};

/** The contact sheet: a PNG in base64. */
function drawn(sheet) {
  const bytes = Uint8Array.from(atob(sheet), (letter) => letter.charCodeAt(0));
  const picture = make("img.sheet", { alt: "The frames that were read, and the caption" });
  picture.src = URL.createObjectURL(new Blob([bytes], { type: "image/png" }));
  picture.onload = () => URL.revokeObjectURL(picture.src);
  return picture;
}

function shown(captions) {
  if (captions.length === 0) return [make("p.muted", {}, "It has nothing to say.")];
  const [best, ...others] = captions;
  const scored = ({ score, log_probability: logProbability }) =>
    make("span.muted.scored", {}, ` score ${decimal(score)} · log-probability ${decimal(logProbability)}`);
  const list = make("ol.captions", { "aria-label": "Other captions" },
    ...others.map((one) => make("li", {}, words(one.text), scored(one))));
  return [
    make("p.verdict", { dir: "auto" }, best.text), make("p", {}, scored(best)),
    ...(others.length ? [make("h3", {}, "Others"), list] : []),
  ];
}
