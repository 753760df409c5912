/** The texts nearest to a question: of those that a site brings, and of those that are pasted. */

import { counted, decimal, make, words } from "../elements.js";
import { linesField, textField } from "../fields.js";

const SHOWN = 10; // texts

export const search = {
  kind: "search",
  path: "search",
  name: "Search",
  title: "Find texts by what they mean",
  lead: "Every text becomes a vector. The nearest texts come first, whatever words they use; the number is the cosine of the vectors.",
  empty: "Write what to look for, and texts to look in.",
  verb: "Search",

  open({ query: wanted, texts: pasted, library }) {
    const query = textField("Look for", wanted, { rows: 2 });
    const note = library ? `One a line; ${counted(library, "text")} of this page will be searched, too.` : "One a line.";
    const texts = linesField(library ? "Your own texts" : "Texts to look in", pasted, { rows: library ? 3 : 8, note });
    return {
      fields: [query.row, texts.row],
      body: () => {
        if (!query.value.trim() || !(library || texts.values.length)) return null;
        return { query: query.value, texts: texts.values, top: SHOWN };
      },
      show: ({ results }) => ({ nodes: [list(results)], said: `${results[0].text}, ${decimal(results[0].score)}` }),
    };
  },
};

/** Texts with their cosines, the nearest first. */
const list = (results) => make("ol.nearest", { "aria-label": "Texts, the nearest first" },
  ...results.map(({ text, score }) => make("li", {}, words(text), make("span.share", {}, decimal(score)),
    make("div.scale", { "aria-hidden": "true", "--share": Math.max(0, score) }))));
