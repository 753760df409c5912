/** Fetches the model, and answers the page's requests with it, apart from the page so that typing is not held up. */

import { answers, libraryOf } from "./answers.js";
import * as ort from "./runtime/ort.wasm.min.mjs";
import { Tokenizer } from "./runtime/tokenizers.min.mjs";

const file = (name) => new URL(name, import.meta.url).href;
const megabytes = (bytes) => (bytes / 1e6).toFixed(1);

/** The bytes of a file; `report` is told how many have come so far. */
async function bytesOf(name, report = () => {}) {
  const response = await fetch(file(name)).catch(() => null);
  if (!response?.ok) throw { message: `${name} is not to be had`, hint: "look at the connection, then try again" };
  const parts = [];
  let count = 0;
  for (const reader = response.body.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    report((count += value.length));
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

const jsonOf = async (name) => JSON.parse(new TextDecoder().decode(await bytesOf(name)));

/** A tokenizer to which the names of special tokens are plain text, but for the mask where masks are filled in. */
function plainTokenizer(content, config, { specials, mask }) {
  const { model } = content;
  if (model.type === "Unigram") {
    model.vocab = model.vocab.map(([piece, score]) => [piece !== mask && specials.includes(piece) ? `\uffff${piece}` : piece, score]);
  }
  content.added_tokens = content.added_tokens.filter(({ content: name }) => name === mask || !specials.includes(name));
  return new Tokenizer(content, config);
}

async function load() {
  const site = await jsonOf("site.json");
  const waits = { ...site.model, precision: null };
  postMessage({ model: waits });
  const content = await jsonOf("model/tokenizer.json");
  let complete = 0; // bytes of files that have come
  const large = async (name) => {
    const bytes = await bytesOf(name, (count) => {
      postMessage({ model: { ...waits, loading: `${megabytes(complete + count)} of ${megabytes(site.bytes)} MB of the model` } });
    });
    complete += bytes.length;
    return bytes;
  };
  const library = site.library
    ? libraryOf(await jsonOf("search/texts.json"), new Int8Array((await large("search/vectors.int8")).buffer), site.dimension)
    : [];
  const weights = await large(site.weights);
  ort.env.wasm.wasmPaths = file("runtime/");
  ort.env.wasm.numThreads = self.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency) : 1;
  const session = await ort.InferenceSession.create(weights, { executionProviders: ["wasm"] });
  const tokenizer = plainTokenizer(content, await jsonOf("model/tokenizer_config.json"), site);
  postMessage({ model: site.model });
  return { site, answer: answers(site, tokenizer, (ids, types) => run(session, ids, types), library) };
}

/** The outputs of the graph for one sequence, by name: `{data, dims}` each. */
function run(session, ids, types) {
  const row = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, ids.length]);
  return session.run({ input_ids: row(ids), attention_mask: row(ids.map(() => 1)), token_type_ids: row(types) });
}

const described = (error) => (error.message && error.hint !== undefined
  ? { slug: error.slug, message: error.message, hint: error.hint }
  : { message: String(error.message ?? error), hint: "reload the page" });

const loaded = load();
loaded.catch((error) => postMessage({ error: described(error) }));

let before = Promise.resolve(); // one request after the other
onmessage = ({ data: { number, path, body } }) => {
  before = before.then(async () => {
    try {
      postMessage({ number, answer: await (await loaded).answer(path, body) });
    } catch (error) {
      postMessage({ number, error: described(error) });
    }
  });
};
