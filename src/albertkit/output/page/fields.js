/** Fields of the forms. */

import { make } from "./elements.js";

let made = 0;

function field(control, label, note) {
  control.id = `field-${++made}`;
  const row = make("div.field", {}, make("label", { htmlFor: control.id }, label), control);
  if (note) {
    row.append(make("p.note", { id: `${control.id}-note` }, note));
    control.setAttribute("aria-describedby", `${control.id}-note`);
  }
  return row;
}

/**
 * A field for a text.
 *
 * @param {string} label of the field.
 * @param {string} value in it at first.
 * @param {{rows?: number, note?: string}} options one row cannot be broken.
 * @returns {{row: Node, control: HTMLTextAreaElement | HTMLInputElement, value: string}} `value` as it is when read; `note` may be set.
 */
export function textField(label, value = "", { rows = 3, note = "" } = {}) {
  const control = rows > 1 ? make("textarea", { "--rows": rows }) : make("input", { type: "text" });
  Object.assign(control, { value, dir: "auto", spellcheck: false, autocomplete: "off" });
  const row = field(control, label, note);
  return {
    row,
    control,
    get value() { return control.value; },
    set value(text) { control.value = text; },
    set note(text) { row.querySelector(".note").textContent = text; }, // of a field that began with one
  };
}

/** A field for several texts, one a line: `values` are those that say something. */
export function linesField(label, lines, options) {
  const text = textField(label, lines.join("\n"), options);
  return {
    row: text.row,
    get values() { return text.value.split("\n").map((line) => line.trim()).filter(Boolean); },
  };
}

/** A choice of one among `options` ([value, name]), as `{row, control}`. */
export function choiceField(label, options) {
  const control = make("select", {}, ...options.map(([value, name]) => make("option", { value }, name)));
  return { row: field(control, label), control };
}
