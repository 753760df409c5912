/** What the masked-LM head would say after each layer. */

import { bars, make, percent, readable } from "../elements.js";
import { passNumber } from "./tokens.js";

/** Arguments as `makeLines`. */
export function makePredictions({ predictions }, state, _weights, change) {
  const title = (number) => (predictions.length > 1 ? `Blank ${number + 1}` : "The blank");
  const blanks = predictions.map((blank, number) => makeBlank(blank, title(number), state, change));
  return {
    node: make("div", {}, ...blanks.flatMap((blank) => blank.nodes),
      make("p.note", {}, "The head was trained on the last layer only; what it reads in earlier states is an approximation.")),
    update: () => blanks.forEach((blank) => blank.update()),
  };
}

function makeBlank({ passes }, title, state, change) {
  const heading = make("p.blank"), now = make("div");
  const best = passes.map(([{ piece, probability }], place) => {
    const name = make("b", { dir: "auto", title: readable(piece) }, readable(piece));
    const button = make("button", { type: "button", onclick: () => change({ pass: place + 1 }) });
    button.append(passNumber(place + 1), name, make("span.share", {}, percent(probability)));
    return button;
  });
  const update = () => {
    heading.textContent = `${title} after layer ${state.pass}`;
    const guesses = passes[state.pass - 1];
    const rows = guesses.map((guess, place) => ({ name: readable(guess.piece), share: guess.probability, best: place === 0 }));
    now.replaceChildren(bars(rows, heading.textContent));
    best.forEach((button, place) => button.setAttribute("aria-current", place + 1 === state.pass));
  };
  const label = `${title}: the best guess after each layer`;
  const list = make("ol.best", { "aria-label": label }, ...best.map((button) => make("li", {}, button)));
  return { nodes: [heading, now, make("p.note", {}, label), list], update };
}
