/** Elements, made without markup: what people and models write is only ever text. */

/**
 * An HTML element.
 *
 * @param {string} tag its name; "p.muted" has a class.
 * @param {object} properties set as properties; those with a dash, and `role`, as attributes.
 * @param {...(Node | string)} children what is in it.
 */
export function make(tag, properties = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  element.classList.add(...classes);
  for (const [property, value] of Object.entries(properties)) {
    if (property.startsWith("--")) element.style.setProperty(property, value);
    else if (property.includes("-") || property === "role") element.setAttribute(property, value);
    else element[property] = value;
  }
  element.append(...children);
  return element;
}

/** An SVG element with attributes. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A span of somebody's text, which runs in its own direction. */
export const words = (text, tag = "span") => make(tag, { dir: "auto" }, text);

/** "▁cat" as "cat"; a token that is only a space as reports write it. */
export const readable = (piece) => (piece.replace(/^▁/, "") || "(space)").replaceAll("▁", " ").normalize("NFC");

/** 0.4321 as 43.2%. */
export function percent(share) {
  if (share > 0 && share < 0.0005) return "< 0.1%";
  return `${(100 * share).toFixed(1)}%`;
}

/** Places in answers count characters; JavaScript's strings count UTF-16 units, two for an emoji. */
export const characters = (text) => Array.from(text);

/**
 * Bars of probabilities.
 *
 * @param {{name: string, share: number, best?: boolean}[]} rows in the order they are shown.
 * @param {string} label what they are of, for those who do not see them.
 */
export function bars(rows, label) {
  const items = rows.map(({ name, share, best = false }) =>
    make(best ? "li.first" : "li", {},
      words(name), make("div.bar", { "aria-hidden": "true", "--share": share }), make("span.share", {}, percent(share))));
  return make("ol.bars", { "aria-label": label }, ...items);
}

/** A number with two decimals and a true minus. */
export const decimal = (value) => value.toFixed(2).replace("-", "−");

/** `count` in words: one text, 3 texts. */
export const counted = (count, thing) => `${count === 1 ? "one" : count} ${thing}${count === 1 ? "" : "s"}`;
