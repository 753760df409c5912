/** The class, the labels or the number of a text or a pair of texts. */

import { bars, make, percent } from "../elements.js";
import { textField } from "../fields.js";

const SINGLE = "Only for models of pairs; leave it empty otherwise.";
const PAIRS = "This model was trained on pairs: write a second text, too.";

/** The form of both tabs: a text, and a second one for models of pairs. */
function open(kind, example, show) {
  const [text, pair] = Array.isArray(example) ? example : [example.text ?? example, example.pair ?? ""];
  const first = textField("Text", text, { rows: 4 });
  const second = textField("Second text", pair, { rows: 2, note: SINGLE });
  let readsPairs = false;
  const tell = () => { second.note = !readsPairs ? SINGLE : second.value.trim() ? "" : PAIRS; };
  second.control.addEventListener("input", tell);
  return {
    choose: (model) => {
      readsPairs = Array.isArray(model.examples?.[kind]);
      tell();
    },
    fields: [first.row, second.row],
    body: () => {
      if (!first.value.trim()) return null;
      return { texts: [second.value.trim() ? [first.value, second.value] : first.value] };
    },
    show,
  };
}

export const classify = {
  kind: "classify",
  path: "classify",
  name: "Classify",
  title: "What kind of text is it?",
  lead: "The probability of each label that the model was trained on.",
  empty: "Write a text.",
  open: (example = "A pleasure from the first page to the last.") => open("classify", example, shownLabels),
};

export const score = {
  kind: "score",
  path: "score",
  name: "Score",
  title: "How much?",
  lead: "One number, on the scale of the data that the model was trained on.",
  empty: "Write a text.",
  open: (example = ["A man plays the guitar.", "Someone is making music."]) => open("score", example, shownNumber),
};

/** Of one label (`label`) or of any number (`labels`). */
function shownLabels({ results: [{ label, labels = [label], probabilities }] }) {
  const rows = Object.entries(probabilities)
    .map(([name, share]) => ({ name, share, best: labels.includes(name) }))
    .sort((a, b) => b.share - a.share);
  const verdict = labels.join(", ") || "no label";
  return {
    nodes: [make("p.verdict", { dir: "auto" }, verdict), bars(rows, "Labels, likeliest first")],
    said: labels.map((name) => `${name}, ${percent(probabilities[name])}`).join("; ") || verdict,
  };
}

function shownNumber({ results: [{ value }] }) {
  const number = value.toFixed(3).replace("-", "−");
  return { nodes: [make("p.number", {}, number)], said: number };
}
