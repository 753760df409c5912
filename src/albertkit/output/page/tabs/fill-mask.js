/** The likeliest pieces for each [MASK]. */

import { bars, make, percent, readable, words } from "../elements.js";
import { textField } from "../fields.js";

const MASK = "[MASK]";

export const fillMask = {
  kind: "fill-mask",
  path: "fill-mask",
  name: "Fill in",
  title: "Fill in the blanks",
  lead: "Put [MASK] where a word is missing. Each blank is guessed as if the others stayed hidden.",
  empty: "Write a text with a [MASK] in it.",

  open(example = "The following example shows how to use the [MASK].") {
    const text = textField("Text", example, { rows: 4 });
    return {
      fields: [text.row],
      tools: [make("button", { type: "button", onclick: () => insertMask(text.control) }, "Insert [MASK]")],
      body: () => (text.value.trim() ? { texts: [text.value], top: 5 } : null),
      show: ({ results: [found] }) => ({ nodes: [filled(found), ...guesses(found)], said: spoken(found) }),
    };
  },
};

function insertMask(control) {
  control.setRangeText(MASK, control.selectionStart, control.selectionEnd, "end");
  control.focus();
  control.dispatchEvent(new Event("input", { bubbles: true }));
}

/** What stands for a blank: the word, or the token where it has no letters of its own. */
const named = ({ word, piece }) => word || readable(piece);

/** The text with the best guess in each blank. */
function filled({ text, masks }) {
  const sentence = make("p.reading", { dir: "auto" });
  text.split(MASK).forEach((part, number) => {
    if (number > 0) sentence.append(words(named(masks[number - 1][0]), "mark"));
    sentence.append(part);
  });
  return sentence;
}

const guesses = ({ masks }) => masks.flatMap((guesses, number) => {
  const label = masks.length > 1 ? `Blank ${number + 1}` : "The blank";
  const rows = guesses.map((guess, place) => ({ name: named(guess), share: guess.probability, best: place === 0 }));
  return [...(masks.length > 1 ? [make("h3", {}, label)] : []), bars(rows, `${label}: guesses, best first`)];
});

const spoken = ({ masks }) => masks.map(([best]) => `${named(best)}, ${percent(best.probability)}`).join("; ");
