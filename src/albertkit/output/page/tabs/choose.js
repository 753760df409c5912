/** One of several choices. */

import { bars, make, percent } from "../elements.js";
import { linesField, textField } from "../fields.js";

export const choose = {
  kind: "choose",
  path: "choose",
  name: "Choose",
  title: "Multiple choice",
  lead: "Which of the choices fits the question and the text best?",
  empty: "Write two choices or more, and a question or a text.",

  open(example = { context: "It rained all night.", question: "How was the street in the morning?", choices: ["wet", "dry"] }) {
    const context = textField("Text", example.context ?? "", { rows: 4 });
    const question = textField("Question", example.question ?? "", { rows: 1 });
    const choices = linesField("Choices", example.choices, { rows: 4, note: "One a line." });
    return {
      fields: [context.row, question.row, choices.row],
      body: () => {
        const about = context.value.trim() || question.value.trim();
        if (!about || choices.values.length < 2) return null;
        return { questions: [{ context: context.value, question: question.value, choices: choices.values }] };
      },
      show: ({ results: [{ index, probabilities }] }, { questions: [{ choices: asked }] }) => {
        const shares = Object.values(probabilities); // in the order of the choices: their letters
        const rows = asked.map((name, number) => ({ name, share: shares[number], best: number === index }));
        return {
          nodes: [make("p.verdict", { dir: "auto" }, asked[index]), bars(rows, "Choices")],
          said: `${asked[index]}, ${percent(shares[index])}`,
        };
      },
    };
  },
};
