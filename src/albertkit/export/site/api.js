/** The model in this browser, in place of the service that `api.js` of the service's page asks. */

const trusted = globalThis.trustedTypes?.createPolicy("albertkit", { createScriptURL: (url) => url });
const addressed = (name) => {
  const { href } = new URL(name, import.meta.url);
  return trusted ? trusted.createScriptURL(href) : href;
};

/** Why a request has no answer: `slug`, `message` and `hint`, as the service names them. */
export class ServiceError extends Error {
  constructor({ slug = "", message, hint = "" }) {
    super(message);
    Object.assign(this, { slug, hint });
  }
}

export const askForKeysWith = () => {}; // there are no keys
export const hasKey = () => false;
export const forgetKey = () => {};

let worker = null, model = null, failure = null, asked = 0;
const waiting = new Map(); // number of a request to what its answer resolves

/** Starts the worker that fetches the model; what it says goes to the page. */
function start() {
  failure = null;
  worker = new Worker(addressed("worker.js"), { type: "module" });
  worker.onerror = () => fail({ message: "this browser cannot run the model", hint: "use a newer browser" });
  worker.onmessage = ({ data }) => {
    if (data.error && data.number === undefined) return fail(data.error);
    if (data.model) {
      model = data.model;
      if (model.precision) navigator.serviceWorker?.register(addressed("offline.js"));
      return;
    }
    waiting.get(data.number)?.(data);
    waiting.delete(data.number);
  };
}

function fail(error) {
  failure = error;
  worker = model = null;
  for (const resolve of waiting.values()) resolve({ error });
  waiting.clear();
}

/** The models, or the answer of the model to a request of the page; as `ask` of the service's page. */
export async function ask(path, body = null, signal = undefined) {
  if (worker === null) start();
  if (path === "models") {
    while (model === null && failure === null) await new Promise((resolve) => setTimeout(resolve, 50));
    if (failure) throw new ServiceError(failure);
    return { models: [model] };
  }
  const number = asked++;
  const { answer, error } = await new Promise((resolve, reject) => {
    signal?.addEventListener("abort", () => reject(new DOMException("stopped", "AbortError")));
    waiting.set(number, resolve);
    worker.postMessage({ number, path, body });
  });
  if (error) throw new ServiceError(error);
  return answer;
}
