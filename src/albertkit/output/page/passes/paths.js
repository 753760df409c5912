/** How the hidden states move: a path for each token, drawn up to the layer that is looked at. */

import { make, percent, readable } from "../elements.js";
import { makeCanvas } from "./canvas.js";

const MARGIN = 26; // pixels
const GLIDE = 260; // milliseconds from one layer to another
const stillness = matchMedia("(prefers-reduced-motion: reduce)");

const overlap = (a, b) => a.left < b.right && a.right > b.left && a.top < b.bottom && a.bottom > b.top;

/** Arguments as `makeLines`. */
export function makePaths({ tokens, states_2d: paths, variance }, state, _weights, change) {
  const names = tokens.map(readable), points = paths.flat();
  const [low, high] = [Math.min, Math.max].map((end) => [0, 1].map((axis) => end(...points.map((point) => point[axis]))));
  let shown = state.pass, frame = 0, place = (point) => point;
  const { canvas, repaint } = makeCanvas({
    role: "img", "aria-label": "Paths of the hidden states from layer to layer; their steps are beside this picture in numbers.",
  }, paint);

  /** Where a token is at a layer that may lie between two. */
  function at(path, pass) {
    const before = Math.floor(pass), part = pass - before, a = path[before], b = path[Math.min(before + 1, path.length - 1)];
    return place([a[0] + part * (b[0] - a[0]), a[1] + part * (b[1] - a[1])]);
  }

  function paint(pen, width, height, colours) {
    const [across, up] = [0, 1].map((axis) => Math.max(high[axis] - low[axis], 1e-9));
    const unit = Math.min((width - 2 * MARGIN) / across, (height - 2 * MARGIN) / up);
    place = ([x, y]) => [width / 2 + (x - (low[0] + high[0]) / 2) * unit, height / 2 - (y - (low[1] + high[1]) / 2) * unit];
    paths.forEach((path, number) => { if (number !== state.token) drawPath(pen, path, colours.muted, 1, 0.3); });
    drawPath(pen, paths[state.token], colours.warm, 2, 1);
    paths[state.token].slice(0, Math.floor(shown) + 1).forEach((point) => dot(pen, place(point), 2.5, colours.warm));
    paths.forEach((path, number) => dot(pen, at(path, shown), 3.5, number === state.token ? colours.warm : colours.accent));
    drawNames(pen, colours);
  }

  function drawPath(pen, path, colour, thickness, opacity) {
    pen.globalAlpha = opacity;
    pen.strokeStyle = colour;
    pen.lineWidth = thickness;
    pen.beginPath();
    path.slice(0, Math.floor(shown) + 1).forEach((point) => pen.lineTo(...place(point)));
    pen.lineTo(...at(path, shown));
    pen.stroke();
    pen.globalAlpha = 1;
  }

  function dot(pen, [x, y], radius, colour) {
    pen.fillStyle = colour;
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    pen.fill();
  }

  /** Names beside the dots, the chosen token's first; one that would lie on another is left out. */
  function drawNames(pen, colours) {
    const taken = [], order = [state.token, ...names.keys()];
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    for (const number of new Set(order)) {
      const [x, y] = at(paths[number], shown), width = pen.measureText(names[number]).width;
      const left = x + 8 + width > pen.canvas.clientWidth ? x - 8 - width : x + 8;
      const box = { left, right: left + width, top: y - 8, bottom: y + 8 };
      if (taken.some((other) => overlap(box, other))) continue;
      taken.push(box);
      pen.lineWidth = 3;
      pen.strokeStyle = colours.panel; // a halo, so that the lines behind do not cross the letters
      pen.strokeText(names[number], left, y);
      pen.fillStyle = number === state.token ? colours.warm : colours.ink;
      pen.fillText(names[number], left, y);
    }
  }

  canvas.onclick = ({ offsetX, offsetY }) => {
    const distances = paths.map((path) => Math.hypot(...at(path, shown).map((value, axis) => value - [offsetX, offsetY][axis])));
    const nearest = distances.indexOf(Math.min(...distances));
    if (distances[nearest] < 24) change({ token: nearest });
  };

  function update() {
    cancelAnimationFrame(frame);
    const from = shown, began = performance.now();
    const glide = (now) => {
      const part = stillness.matches ? 1 : Math.min(1, Math.max(0, now - began) / GLIDE);
      shown = from + (state.pass - from) * part * (2 - part);
      repaint();
      if (part < 1) frame = requestAnimationFrame(glide);
    };
    glide(began);
  }
  const share = percent(variance[0] + variance[1]);
  const note = make("p.note", {}, `The plane in which the states differ most; it shows ${share} of how they do.`);
  return { node: make("div", {}, canvas, note), update };
}
