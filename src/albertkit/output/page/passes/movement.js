/** How far each layer moves the chosen token, and how near that brings it to where it ends. */

import { decimal, make, readable } from "../elements.js";
import { passNumber } from "./tokens.js";

const ROOMY = 12; // columns that leave room for a number over each

/** Arguments as `makeLines`. */
export function makeMovement({ tokens, step, similarity }, state, _weights, change) {
  const farthest = Math.max(...step.flat());
  const charts = [
    columns("Step: the length of what a layer adds, next to that of the state", step, farthest, state, change),
    columns("Cosine with the state after the last layer", similarity, 1, state, change),
  ];
  const name = make("b", { dir: "auto" });
  const update = () => {
    name.textContent = readable(tokens[state.token]);
    charts.forEach((chart) => chart.update());
  };
  return { node: make("div", {}, make("p", {}, name, " from layer to layer"), ...charts.map((chart) => chart.node)), update };
}

/** A column a layer: value above, bar, number of the layer; [S][L] values, of which the chosen token's are shown. */
function columns(title, values, most, state, change) {
  const passes = values[0].map((_, place) => {
    const value = make("span.value"), bar = make("span.bar");
    const button = make("button", { type: "button", onclick: () => change({ pass: place + 1 }) },
      value, make("span.room", { "aria-hidden": "true" }, bar), passNumber(place + 1));
    return { value, bar, button };
  });
  const update = () => passes.forEach(({ value, bar, button }, place) => {
    const number = values[state.token][place];
    value.textContent = decimal(number);
    bar.style.setProperty("--share", Math.max(0, number / most));
    button.setAttribute("aria-current", place + 1 === state.pass);
  });
  const items = passes.map(({ button }) => make("li", {}, button));
  const list = make(passes.length > ROOMY ? "ol.columns.crowded" : "ol.columns", { "aria-label": title }, ...items);
  return { node: make("figure", {}, make("figcaption.note", {}, title), list), update };
}
