/** The text as tokens to choose from, with a line from the chosen one to those it looks at. */

import { draw, make, percent, readable } from "../elements.js";
import { continues, darkest } from "./tokens.js";

const FAINTEST = 0.12; // of the darkest: what is weaker has no line
const NAMED = 3; // that are named below

/**
 * @param {object} found the answer of `/passes`.
 * @param {object} state pass, head, token.
 * @param {(pass: number, head: "mean" | number) => number[][]} weights see `attentionOf`.
 * @param {(changes: object) => void} change of the state.
 */
export function makeLines({ tokens }, state, weights, change) {
  const chips = tokens.map((piece, number) => make(continues(piece) ? "button.joined" : "button", {
    type: "button", role: "radio", dir: "auto", onclick: () => change({ token: number }),
  }, readable(piece)));
  const arcs = draw("svg", { "aria-hidden": "true" });
  const strip = make("div.tokens", { role: "radiogroup", "aria-label": "Token" }, arcs, ...chips);
  const most = make("p.note", {});

  strip.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const to = { Home: 0, End: chips.length - 1 }[event.key] ?? (step && (state.token + step + chips.length) % chips.length);
    if (to === undefined) return;
    event.preventDefault();
    change({ token: to });
    chips[to].focus();
  };

  function update() {
    const row = weights(state.pass, state.head)[state.token], full = darkest(row);
    chips.forEach((chip, number) => {
      const chosen = number === state.token;
      chip.setAttribute("aria-checked", chosen);
      chip.tabIndex = chosen ? 0 : -1;
      chip.style.setProperty("--share", row[number] / full);
      chip.title = percent(row[number]);
    });
    drawArcs(row.map((weight) => weight / full));
    const ranked = row.map((weight, number) => [weight, number]).sort((a, b) => b[0] - a[0]).slice(0, NAMED);
    const names = ranked.map(([weight, number]) => `“${readable(tokens[number])}” ${percent(weight)}`);
    most.replaceChildren(make("b", { dir: "auto" }, readable(tokens[state.token])), ` looks most at ${names.join(", ")}`);
  }

  function drawArcs(shares) {
    const middle = (chip) => [chip.offsetLeft + chip.offsetWidth / 2, chip.offsetTop];
    const [x, y] = middle(chips[state.token]);
    const curves = shares.map((share, number) => {
      if (share < FAINTEST || number === state.token) return null;
      const [toX, toY] = middle(chips[number]), lift = 14 + Math.min(26, Math.abs(toX - x) * 0.12);
      if (toY !== y) return null; // it would run behind the tokens between; the colour of the token says as much
      return draw("path", {
        d: `M${x} ${y}C${x} ${y - lift} ${toX} ${toY - lift} ${toX} ${toY}`,
        "stroke-width": 0.75 + 2.5 * share, "stroke-opacity": 0.2 + 0.8 * share,
      });
    });
    arcs.replaceChildren(...curves.filter(Boolean));
  }

  new ResizeObserver(update).observe(strip);
  return { node: make("div", {}, strip, most), update };
}
