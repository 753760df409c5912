/** How near texts are to each other. */

import { decimal, make, words } from "../elements.js";
import { linesField } from "../fields.js";

const EXAMPLES = [
  "A man plays the guitar.",
  "Someone is making music.",
  "The stock market fell sharply on Monday.",
  "Shares lost a great deal of their value.",
];

export const similarity = {
  kind: "embed",
  path: "similarity",
  name: "Similarity",
  title: "How near are they?",
  lead: "Every text becomes a vector. The cosine of two vectors says how alike their texts are: 1 at most.",
  empty: "Write two texts or more, one a line.",

  open() {
    const texts = linesField("Texts", EXAMPLES, { rows: 8, note: "One a line." });
    return {
      fields: [texts.row],
      body: () => (texts.values.length > 1 ? { texts: texts.values } : null),
      show: ({ results }, { texts: asked }) => {
        const [first, second] = nearest(results), cosine = decimal(results[first][second]);
        return {
          nodes: [
            make("p.verdict", {}, "Nearest: ", make("b", {}, `${first + 1} and ${second + 1}`), ` · ${cosine}`),
            heatMap(results, asked),
          ],
          said: `Nearest: “${asked[first]}” and “${asked[second]}”, ${cosine}`,
        };
      },
    };
  },
};

/** The two texts with the largest cosine, by their places. */
function nearest(matrix) {
  let best = [0, 1];
  for (let a = 0; a < matrix.length; a++) {
    for (let b = a + 1; b < matrix.length; b++) if (matrix[a][b] > matrix[best[0]][best[1]]) best = [a, b];
  }
  return best;
}

const DENSE = 12; // texts from which there is room for colours only

/** The numbers on colours: the more alike the darker, and another hue below 0. Where none is below, the least alike has none. */
function heatMap(matrix, texts) {
  const least = Math.min(...matrix.flat()), from = least > 0 && least < 1 ? least : 0;
  const share = (cosine) => Math.min(Math.max((Math.abs(cosine) - from) / (1 - from), 0), 1);
  const dense = matrix.length >= DENSE;
  const head = make("tr", {}, make("td"), ...texts.map((text, n) => make("th", { scope: "col", title: text }, `${n + 1}`)));
  const rows = matrix.map((row, number) => make("tr", {},
    make("th", { scope: "row", title: texts[number] }, make("span.muted", {}, `${number + 1} `), words(texts[number])),
    ...row.map((cosine) => make(cosine < 0 ? "td.below" : "td", { "--share": share(cosine), title: decimal(cosine) },
      ...(dense ? [] : [decimal(cosine)])))));
  const note = `Colours go from ${decimal(from)} to 1.00.${dense ? " Point at a cell for its number." : ""}`;
  return make("div", {},
    make("div.scroll", { tabIndex: 0, role: "region", "aria-label": "Cosine of every text with every other" },
      make(dense ? "table.heat.dense" : "table.heat", {}, make("thead", {}, head), make("tbody", {}, ...rows))),
    make("p.note", {}, note));
}
