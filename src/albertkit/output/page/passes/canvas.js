/** Canvases that stay sharp and are painted again when their size or the colours of the page change. */

import { make } from "../elements.js";

const COLOURS = ["panel", "ink", "muted", "line", "accent", "warm"];

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const canvas of document.querySelectorAll("canvas")) canvas.dispatchEvent(new Event("repaint"));
});

/**
 * A canvas and the function that paints it again.
 *
 * @param {object} properties of the element.
 * @param {(pen: CanvasRenderingContext2D, width: number, height: number, colours: object) => void} paint in CSS pixels.
 */
export function makeCanvas(properties, paint) {
  const canvas = make("canvas", properties), pen = canvas.getContext("2d");
  const repaint = () => {
    const { clientWidth: width, clientHeight: height } = canvas, sharpness = window.devicePixelRatio || 1;
    if (width === 0) return; // not shown
    [canvas.width, canvas.height] = [Math.round(width * sharpness), Math.round(height * sharpness)];
    pen.setTransform(sharpness, 0, 0, sharpness, 0, 0);
    const style = getComputedStyle(canvas);
    pen.font = `13px ${style.fontFamily}`;
    paint(pen, width, height, Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])));
  };
  canvas.addEventListener("repaint", repaint);
  new ResizeObserver(repaint).observe(canvas);
  return { canvas, repaint };
}
