/** The entities of a text, where they stand. */

import { characters, counted, make, percent, words } from "../elements.js";
import { textField } from "../fields.js";

const COLOURS = 8; // --c0 … --c7 in page.css

export const tag = {
  kind: "tag",
  path: "tag",
  name: "Entities",
  title: "Who, where, what",
  lead: "The names in a text, each with its type and how sure the model is.",
  empty: "Write a text.",

  open(example = "Ada Lovelace was born in London.") {
    const text = textField("Text", example, { rows: 5 });
    return {
      fields: [text.row],
      body: () => (text.value.trim() ? { texts: [text.value] } : null),
      show: ({ results: [found] }, { texts: [asked] }) => {
        const types = [...new Set(found.entities.map((entity) => entity.type))].sort();
        const colour = (type) => `var(--c${types.indexOf(type) % COLOURS})`;
        return {
          nodes: [marked(asked, found.entities, colour), list(found.entities, colour), tags(found)],
          said: [counted(found.entities.length, "name"), ...found.entities.map((one) => `${one.text}: ${one.type}`)].join("; "),
        };
      },
    };
  },
};

/** The text with its entities marked; their places count characters. */
function marked(text, entities, colour) {
  const all = characters(text), shown = make("p.reading.tagged", { dir: "auto" });
  let at = 0;
  for (const { start, end, type } of entities.toSorted((a, b) => a.start - b.start)) {
    shown.append(all.slice(at, start).join(""),
      make("mark", { "--colour": colour(type) }, words(all.slice(start, end).join("")), make("small", {}, type)));
    at = end;
  }
  shown.append(all.slice(at).join(""));
  return shown;
}

function list(entities, colour) {
  if (entities.length === 0) return make("p.muted", {}, "It finds no names here.");
  return make("ul.entities", { "aria-label": "Entities" }, ...entities.map((entity) => make("li", {},
    make("span.dot", { "--colour": colour(entity.type), "aria-hidden": "true" }), words(entity.text),
    make("span.muted", {}, entity.type), make("span.share", {}, percent(entity.score)))));
}

/** Each word with its tag, for those who look closely. */
const tags = ({ words: all, tags: of }) => make("details", {}, make("summary", {}, "The tag of each word"),
  make("ul.tags", {}, ...all.map((word, number) => make("li", {}, words(word), make("small", {}, of[number])))));
