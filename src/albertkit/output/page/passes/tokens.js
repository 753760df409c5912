/** Tokens as people read them, and what one looks at. */

import { make } from "../elements.js";

/** The number of a layer; heard with what it counts. */
export const passNumber = (pass) => make("span.pass", {}, make("span.unseen", {}, "after layer "), `${pass}`);

/** Whether a piece continues the word before it. */
export const continues = (piece) => !/^(▁|\[|<)/.test(piece);

/**
 * What is shown darkest: the strongest weight, but at least 0.2, so that a head that looks everywhere alike stays pale.
 *
 * @param {number[]} weights
 */
export const darkest = (weights) => Math.max(0.2, ...weights);

/**
 * Attention of a layer, by head or over all heads.
 *
 * @param {number[][][][]} attention [L][A][S][S].
 * @returns {(pass: number, head: "mean" | number) => number[][]} pass from 1; [S][S], row looks at column.
 */
export function attentionOf(attention) {
  const means = new Map();
  const mean = (heads) => heads[0].map((row, from) => row.map(
    (_, to) => heads.reduce((sum, head) => sum + head[from][to], 0) / heads.length));
  return (pass, head) => {
    const heads = attention[pass - 1];
    if (head !== "mean") return heads[head];
    if (!means.has(pass)) means.set(pass, mean(heads));
    return means.get(pass);
  };
}
