/** The layer viewer: one text through the shared layer, applied many times, with a slider over them. */

import { make } from "../elements.js";
import { choiceField } from "../fields.js";
import { makeLines } from "./lines.js";
import { makeMatrix } from "./matrix.js";
import { makeMovement } from "./movement.js";
import { makePaths } from "./paths.js";
import { makePredictions } from "./predictions.js";
import { attentionOf } from "./tokens.js";

const BEAT = 800; // milliseconds a layer while it plays

/**
 * @param {object} found the answer of `/passes`.
 * @param {{pass: number, head: "mean" | number, token: ?number}} state is kept up to date: layer from 1, token from 0;
 *   at first the last layer, and a token with a [MASK].
 */
export function makeViewer(found, state) {
  const passes = found.attention.length, heads = found.attention[0].length;
  state.pass = Math.min(state.pass, passes);
  state.token = Math.min(state.token ?? Math.max(1, found.tokens.indexOf("[MASK]")), found.tokens.length - 1);
  if (state.head >= heads) state.head = "mean";

  const weights = attentionOf(found.attention), controls = makeControls(passes, heads, state, change);
  const part = (title, makePart) => {
    const { node, update } = makePart(found, state, weights, change);
    return { node: make("section.card", { "aria-label": title }, make("h3", {}, title), node), update };
  };
  const parts = [
    part("Where it looks", makeLines), part("All tokens", makeMatrix), part("How the states move", makePaths),
    part("How far", makeMovement), ...(found.predictions?.length ? [part("What it would say", makePredictions)] : []),
  ];

  function change(changes) {
    Object.assign(state, changes);
    controls.update();
    parts.forEach(({ update }) => update());
  }
  change({});
  return make("div.viewer", {}, controls.node, ...parts.map(({ node }) => node));
}

function makeControls(passes, heads, state, change) {
  const slider = make("input", { type: "range", min: 1, max: passes, step: 1, id: "pass" });
  const shown = make("output", { htmlFor: "pass" }), play = make("button.play", { type: "button" });
  const single = Array.from({ length: heads }, (_, number) => [number, `${number + 1} of ${heads}`]);
  const head = choiceField("Head", [["mean", `mean of ${heads}`], ...single]);
  let beat = 0;

  const stop = () => {
    clearInterval(beat);
    beat = 0;
  };
  const next = () => {
    if (!slider.isConnected) return stop(); // another text took its place
    if (state.pass === passes - 1) stop();
    change({ pass: state.pass + 1 });
  };
  play.onclick = () => {
    if (beat) stop();
    else beat = setInterval(next, BEAT);
    change(beat && state.pass === passes ? { pass: 1 } : {});
  };
  slider.oninput = () => {
    stop();
    change({ pass: Number(slider.value) });
  };
  head.control.oninput = () => change({ head: head.control.value === "mean" ? "mean" : Number(head.control.value) });

  const update = () => {
    slider.value = state.pass;
    slider.setAttribute("aria-valuetext", `layer ${state.pass} of ${passes}`);
    shown.textContent = `Layer ${state.pass} of ${passes}`;
    play.textContent = beat ? "Pause" : "Play";
    head.control.value = state.head;
  };
  const row = make("div.pass-slider", {}, make("label", { htmlFor: "pass" }, shown), slider);
  return { node: make("div.controls", { role: "group", "aria-label": "Layers" }, play, row, head.row), update };
}
