/** Requests to the service that this page came from, wherever it is mounted. */

const base = new URL("..", import.meta.url);
const KEY = "albertkit-key"; // in sessionStorage: one tab, until it is closed
const UNREACHABLE = {
  message: "the service does not answer",
  hint: "see whether it still runs and this machine reaches it, then try again",
};

let obtainKey = async () => null;

/** Why a request has no answer: `message` and `hint`; `slug` is the service's name for it, "" if the service said nothing. */
export class ServiceError extends Error {
  constructor({ slug = "", message, hint = "" }) {
    super(message);
    Object.assign(this, { slug, hint });
  }
}

/** Names the function that gets a key from a person: (wasRefused) => a key, or null if there is none to have. */
export function askForKeysWith(obtain) {
  obtainKey = obtain;
}

/** Where an endpoint is. */
export const addressOf = (path) => new URL(path, base);

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

export const forgetKey = () => sessionStorage.removeItem(KEY);

/**
 * The service's answer to a request.
 *
 * @param {string} path of the endpoint, without a slash.
 * @param {object | FormData | null} body sent by POST; null for GET.
 * @param {AbortSignal} signal ends the request: AbortError.
 * @returns {Promise<any>} the JSON it answers with.
 */
export async function ask(path, body = null, signal = undefined) {
  const key = sessionStorage.getItem(KEY);
  const [response, answer] = await exchange(path, body, key, signal);
  if (response.status === 401) {
    const given = await obtainKey(key !== null);
    if (given !== null) {
      sessionStorage.setItem(KEY, given);
      return ask(path, body, signal);
    }
  }
  if (response.ok && answer !== undefined) return answer;
  throw new ServiceError(answer?.error ?? unexpected(response));
}

async function exchange(path, body, key, signal) {
  const headers = new Headers({ Accept: "application/json" });
  if (key !== null) headers.set("Authorization", `Bearer ${key}`);
  const isForm = body instanceof FormData; // whose Content-Type the browser sets
  if (body !== null && !isForm) headers.set("Content-Type", "application/json");
  try {
    const response = await fetch(addressOf(path), {
      method: body === null ? "GET" : "POST", headers, signal, cache: "no-store",
      body: body === null || isForm ? body : JSON.stringify(body),
    });
    return [response, parsed(await response.text())];
  } catch (error) {
    throw error.name === "AbortError" ? error : new ServiceError(UNREACHABLE);
  }
}

/** The text as JSON; undefined if it is none. */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const unexpected = (response) => ({
  message: `it answered ${response.status} ${response.statusText}`.trim() + (response.ok ? ", but not in JSON" : ""),
  hint: "something between this page and the service may have answered in its place",
});
