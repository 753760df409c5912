/** The same layer, run again and again: a text, layer by layer. */

import { make } from "../elements.js";
import { textField } from "../fields.js";
import { makeViewer } from "../passes/viewer.js";

export const passes = {
  kind: "passes",
  path: "passes",
  prefers: "fill-mask",
  name: "Layers",
  title: "The same layer, run again and again",
  lead: ({ kinds }) => "ALBERT sends a text through one shared layer many times. Move through the layers: where the heads look"
    + (kinds.includes("fill-mask") ? ", how far each token moves, and what the model would say if it stopped there."
      : ", and how far each token moves."),
  empty: "Write a text.",
  verb: "Look inside",
  pause: 1200, // milliseconds: an answer of 64 tokens and 12 layers is 4 MB

  open(own, model = { kinds: ["fill-mask"] }) {
    const fills = model.kinds.includes("fill-mask");
    const { "fill-mask": masked, embed } = model.examples ?? {};
    const example = own ?? (fills ? masked : embed) ?? "The old clock in the [MASK] has stopped again.";
    const note = fills ? "A [MASK] shows what the model would say after each layer." : "";
    const text = textField("Text", fills ? example : example.replace("[MASK]", "tower"), { rows: 2, note });
    let memory = { pass: Infinity, head: "mean", token: null }; // kept while the text changes
    return {
      fields: [text.row],
      body: () => (text.value.trim() ? { text: text.value } : null),
      show: (found) => {
        const passes = found.attention.length, isSame = memory.passes === passes;
        memory = { ...memory, passes, pass: isSame ? memory.pass : Infinity }; // another model: its last layer
        return {
          nodes: [
            ...(found.left_out ? [make("p.note", {}, `Of the text ${found.left_out} more tokens are left out.`)] : []),
            makeViewer(found, memory),
          ],
          said: `${found.tokens.length} tokens, ${found.attention.length} layers.`,
        };
      },
    };
  },
};
