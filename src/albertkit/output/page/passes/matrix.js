/** Attention as a square: each row is a token that looks, each column one that is looked at. */

import { make, percent, readable } from "../elements.js";
import { makeCanvas } from "./canvas.js";

const LEGIBLE = 7; // pixels of a cell that leave room for a label
const LONGEST = 84; // pixels of a label
const GAMMA = 0.6; // weak weights stay visible

/** The least and the largest weight; at least half an even share apart, so that a head that looks everywhere stays pale. */
function range(matrix) {
  const all = matrix.flat(), least = Math.min(...all);
  return [least, Math.max(...all, least + 0.5 / matrix.length)];
}

/** Arguments as `makeLines`. */
export function makeMatrix({ tokens }, state, weights, change) {
  const count = tokens.length, names = tokens.map(readable);
  const cell = { from: state.token, to: 0 }; // the one that is read out
  let box = { x: 0, y: 0, size: 0 }, pointed = false;
  const { canvas, repaint } = makeCanvas({
    tabIndex: 0, role: "application", "aria-roledescription": "matrix of attention",
    "aria-label": "Attention. Arrow keys go from cell to cell, Enter chooses the token of the row.",
  }, paint);
  const readout = make("output.note", { "aria-live": "polite", dir: "auto" });

  function paint(pen, width, height, colours) {
    const side = Math.min(width, height), labels = fittingLabels(pen, side);
    const size = Math.floor((side - labels) / count * 2) / 2; // half pixels: no seams between the cells
    box = { x: labels, y: labels, size };
    const matrix = weights(state.pass, state.head), [least, most] = range(matrix);
    pen.fillStyle = colours.accent;
    matrix.forEach((row, from) => row.forEach((weight, to) => {
      pen.globalAlpha = ((weight - least) / (most - least)) ** GAMMA;
      pen.fillRect(box.x + to * size, box.y + from * size, size, size);
    }));
    pen.globalAlpha = 1;
    pen.strokeStyle = colours.line;
    pen.strokeRect(box.x, box.y, count * size, count * size);
    if (labels) names.forEach((name, number) => label(pen, name, number, colours));
    pen.strokeStyle = colours.warm;
    pen.lineWidth = 1.5;
    pen.strokeRect(box.x, box.y + state.token * size, count * size, size);
    if (pointed) {
      pen.strokeStyle = colours.ink;
      pen.strokeRect(box.x + cell.to * size, box.y + cell.from * size, size, size);
    }
  }

  /** Room for the labels, 0 if the cells are too small for any. */
  function fittingLabels(pen, side) {
    const room = Math.min(LONGEST, 8 + Math.max(...names.map((name) => pen.measureText(name).width)));
    return (side - room) / count < LEGIBLE ? 0 : room;
  }

  function label(pen, name, number, colours) {
    const at = (number + 0.5) * box.size;
    pen.fillStyle = number === state.token ? colours.warm : colours.muted;
    pen.font = pen.font.replace(/^\d+px/, `${Math.min(13, Math.floor(box.size))}px`);
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    pen.fillText(name, box.x - 6, box.y + at, LONGEST - 8);
    pen.save();
    pen.translate(box.x + at, box.y - 6);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "left";
    pen.fillStyle = colours.muted;
    pen.fillText(name, 0, 0, LONGEST - 8);
    pen.restore();
  }

  function read() {
    const weight = weights(state.pass, state.head)[cell.from][cell.to];
    readout.textContent = pointed
      ? `“${names[cell.from]}” → “${names[cell.to]}”: ${weight.toFixed(3)}`
      : `From no colour, ${percent(range(weights(state.pass, state.head))[0])}, to the full one, `
        + `${percent(range(weights(state.pass, state.head))[1])}; an even share would be ${percent(1 / count)}.`;
  }
  function point(changes) {
    pointed = true;
    Object.assign(cell, changes);
    read();
    repaint();
  }
  function leave() {
    pointed = false;
    read();
    repaint();
  }
  const clamp = (number) => Math.min(Math.max(number, 0), count - 1);

  canvas.onpointermove = ({ offsetX, offsetY }) => {
    const [to, from] = [(offsetX - box.x) / box.size, (offsetY - box.y) / box.size].map(Math.floor);
    if (clamp(to) === to && clamp(from) === from) point({ from, to });
    else if (pointed) leave();
  };
  canvas.onpointerleave = canvas.onblur = leave;
  canvas.onfocus = () => { if (canvas.matches(":focus-visible")) point({ from: state.token }); };
  canvas.onclick = () => { if (pointed) change({ token: cell.from }); };
  canvas.onkeydown = (event) => {
    const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (move) point({ from: clamp(cell.from + move[0]), to: clamp(cell.to + move[1]) });
    else if (event.key === "Enter") change({ token: cell.from });
    else return;
    event.preventDefault();
  };

  const update = () => {
    read();
    repaint();
  };
  return { node: make("div", {}, canvas, readout), update };
}
