/** Whether two texts stand in their order: what ALBERT was pretrained to say. */

import { make, percent } from "../elements.js";
import { textField } from "../fields.js";

export const sentenceOrder = {
  kind: "sentence-order",
  path: "sentence-order",
  name: "Sentence order",
  title: "Which comes first?",
  lead: "Two pieces of one text: in their order, or swapped? ALBERT learns this while it is pretrained.",
  empty: "Write two texts.",

  open(example = ["The kettle boiled.", "She poured the tea."]) {
    const first = textField("First text", example[0], { rows: 2 }), second = textField("Second text", example[1], { rows: 2 });
    const exchange = () => {
      [first.value, second.value] = [second.value, first.value];
      first.control.form.requestSubmit();
    };
    return {
      fields: [first.row, make("button.swap", { type: "button", onclick: exchange }, "⇅ Swap"), second.row],
      body: () => (first.value.trim() && second.value.trim() ? { pairs: [[first.value, second.value]] } : null),
      show: ({ results: [{ in_order: inOrder, swapped }] }) => {
        const verdict = inOrder >= swapped ? "They stand in their order" : "They are swapped";
        return {
          nodes: [make("p.verdict", {}, verdict), balance(inOrder, swapped)],
          said: `${verdict}, ${percent(Math.max(inOrder, swapped))}`,
        };
      },
    };
  },
};

/** One bar in two parts. */
const balance = (inOrder, swapped) => make("div.balance", {},
  make("div.scale", { "aria-hidden": "true", "--share": inOrder }),
  make("p", {}, make("span", {}, "in order ", make("b", {}, percent(inOrder)))),
  make("p", {}, make("span", {}, "swapped ", make("b", {}, percent(swapped)))));
