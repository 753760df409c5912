/** The answer to a question, and where it stands in a text. */

import { characters, make, percent, words } from "../elements.js";
import { textField } from "../fields.js";

const NONE = "It is not in the text.";

export const answer = {
  kind: "answer",
  path: "answer",
  name: "Answer",
  title: "Find the answer",
  lead: "The model answers with a piece of the text. Point at another candidate, or move to it, to see where it stands.",
  empty: "Write a question, and a text to look in.",

  open(example = { question: "Who wrote it?", context: "It was written by Ada Lovelace in 1843." }) {
    const question = textField("Question", example.question, { rows: 1 });
    const context = textField("Text to look in", example.context, { rows: 7 });
    return {
      fields: [question.row, context.row],
      body: () => {
        if (!question.value.trim() || !context.value.trim()) return null;
        return { questions: [{ question: question.value, context: context.value }], top: 5 };
      },
      show: ({ results: [found] }, { questions: [asked] }) => ({
        nodes: shown(found, asked.context),
        said: `${found.answer || NONE} ${percent(found.score)}`,
      }),
    };
  },
};

function shown(found, context) {
  const text = make("p.reading.context", { dir: "auto" });
  const highlight = (candidate) => text.replaceChildren(...withSpan(context, candidate));
  highlight(found);
  const verdict = make("p.verdict", { dir: "auto" }, found.answer || NONE);
  const total = found.nbest.reduce((sum, { probability }) => sum + probability, 0);
  const apart = total > 1.005 && found.nbest.some((candidate) => !candidate.text); // whether, and where if so
  return [
    verdict, text, make("h3", {}, "Candidates"), candidates(found, highlight),
    ...(apart ? [make("p.note", {}, "“No answer” is judged by itself; the others share 100% among them, should there be one.")] : []),
  ];
}

/** The text with characters `start` to `end` marked; as it is where they are null. */
function withSpan(context, { start, end }) {
  if (start === null || start === undefined) return [context];
  const all = characters(context);
  const [before, span, after] = [all.slice(0, start), all.slice(start, end), all.slice(end)].map((part) => part.join(""));
  return [before, make("mark", {}, span), after];
}

/** Buttons: the one that is pointed at or has the focus is marked in the text; else the answer is. */
function candidates(found, highlight) {
  const items = found.nbest.map((candidate) => {
    const button = make("button", { type: "button" },
      candidate.text ? words(candidate.text) : make("em", {}, "no answer"),
      make("span.share", {}, percent(candidate.probability)));
    button.onmouseenter = button.onfocus = () => highlight(candidate);
    button.onmouseleave = button.onblur = () => highlight(found);
    return make("li", {}, button);
  });
  return make("ol.candidates", { "aria-label": "Candidates, likeliest first" }, ...items);
}
