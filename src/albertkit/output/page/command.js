/** A request as a command line, for those who want to make it without this page. */

import { addressOf, hasKey } from "./api.js";

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** `curl` with the same body: JSON, or a form with a file. */
export function asCommand(path, body) {
  const parts = [`curl ${quoted(addressOf(path).href)}`];
  if (hasKey()) parts.push('-H "Authorization: Bearer $KEY"');
  if (body instanceof FormData) {
    for (const [name, value] of body) parts.push(`-F ${quoted(`${name}=${value instanceof File ? `@${value.name}` : value}`)}`);
  } else {
    parts.push("-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(body))}`);
  }
  return parts.join(" \\\n  ");
}
