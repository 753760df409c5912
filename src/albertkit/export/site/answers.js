/**
 * What a model answers, in the words of the service: a request's body to `{results}`.
 *
 * `site` is site.json. A sequence is [CLS] first [SEP], or [CLS] first [SEP] second [SEP].
 */

const MASK = "[MASK]";
const LETTER = "[\\p{L}\\p{N}\\p{M}\\p{Cf}_]";
const CLITIC = `['’](?:s|m|d|re|ve|ll)(?!${LETTER})`;
const VISIBLE = /[^\p{Z}\p{Cc}\p{Cf}]/u; // `_INVISIBLE` of tasks/tagging.py
// The words of a sentence as the service cuts it: `_WORD` of pipelines/text_pipelines.py.
const WORD = new RegExp(
  `${CLITIC}|(?:\\p{L}\\.){2,}|[@#]?${LETTER}+(?:(?!${CLITIC})[-.,'’&]${LETTER}+)*|([^\\p{L}\\p{N}\\p{M}\\p{Cf}_\\s\\x1c-\\x1f\\x85])\\1*`, "giu");

/** Answers to the requests of the page: `(path, body) => {results}`, or `{results: cosines}` for similarity. */
export function answers(site, tokenizer, run, library = []) {
  const encoded = (text) => tokenizer.encode(text, { add_special_tokens: false }).ids;
  const { cls, sep } = site;

  /** The outputs of a sequence of one or two texts; `cut` tokens were left out of the longer ones. */
  async function read(first, second, truncate) {
    const parts = (second?.length ? [first, second] : [first]).map((ids) => [...ids]); // an empty second text is none
    const room = site.length - 1 - parts.length;
    const count = () => parts.reduce((sum, ids) => sum + ids.length, 0);
    const cut = Math.max(0, count() - room);
    if (cut && !truncate) {
      throw {
        slug: "too-large", message: `the text has ${count() + 1 + parts.length} tokens, the model reads ${site.length}`,
        hint: 'cut it, or say "truncate": true',
      };
    }
    while (count() > room) (parts.length > 1 && parts[0].length <= parts[1].length ? parts[1] : parts[0]).pop();
    const ids = [cls, ...parts.flatMap((part) => [...part, sep])];
    const types = ids.map((_, place) => Number(parts.length > 1 && place > parts[0].length + 1));
    return { outputs: await run(ids, types), ids, cut };
  }

  const truncated = (cut) => (cut ? { truncated: cut } : {});

  const byPath = {
    "fill-mask": async (text, { top = 5 }) => {
      const { outputs, ids } = await read(encoded(text.replaceAll(MASK, site.mask)));
      const masks = ids.flatMap((id, place) => (id === site.maskId ? [place] : []));
      return { text, masks: masks.map((place) => guesses(rowOf(outputs.logits, place), top)) };
    },
    classify: async (value, { truncate }) => {
      const { logits, cut } = await logitsOf(value, truncate);
      const shares = site.several ? logits.map(sigmoid) : softmax(logits);
      const probabilities = Object.fromEntries(site.labels.map((label, place) => [label, shares[place]]));
      const chosen = site.several
        ? { labels: site.labels.filter((_, place) => shares[place] > 0.5) }
        : { label: site.labels[shares.indexOf(Math.max(...shares))] };
      return { ...chosen, probabilities, ...truncated(cut) };
    },
    score: async (value, { truncate }) => {
      const { logits, cut } = await logitsOf(value, truncate);
      return { value: site.sigmoid ? sigmoid(logits[0]) : logits[0], ...truncated(cut) };
    },
    tag: async (text) => {
      const words = wordsOf(text);
      const pieces = words.map(({ word }) => tokenizer.encode(word, { add_special_tokens: false }));
      const logits = await logitsOfTokens(pieces.flatMap(({ ids }) => ids));
      let place = 0;
      for (const [number, word] of words.entries()) {
        const visible = pieces[number].tokens.findIndex((token) => token !== "▁"); // a word is tagged at that token
        if (visible >= 0 && VISIBLE.test(word.word)) {
          const shares = softmax(logits[place + visible]), share = Math.max(...shares);
          Object.assign(word, { tag: site.labels[shares.indexOf(share)], share });
        }
        place += pieces[number].ids.length;
      }
      for (const [number, word] of words.entries()) {
        if (word.tag !== undefined) continue;
        // Without a token of its own: inside what goes on behind it
        const { tag, share } = words[number - 1] ?? { tag: "O", share: 1 }, inside = tag.replace(/^B/, "I");
        const next = words.slice(number).find((other) => other.tag !== undefined)?.tag;
        Object.assign(word, { tag: next === inside ? inside : "O", share });
      }
      return { words: words.map(({ word }) => word), tags: words.map(({ tag }) => tag), entities: entitiesOf(text, words) };
    },
    answer: ({ question, context }, { top = 5 }) => answerOf(question, context, top),
  };

  async function logitsOf(value, truncate) {
    const [first, second] = Array.isArray(value) ? value : [value, ""];
    const { outputs, cut } = await read(encoded(first), second ? encoded(second) : null, truncate);
    return { logits: rowOf(outputs.logits, 0), cut };
  }

  /** The logits of each token of a text of any length, of the window in which it is nearest to the centre. */
  async function logitsOfTokens(ids) {
    const size = site.length - 2, last = Math.max(ids.length - size, 0), starts = [], logits = [];
    for (let start = 0; start < last; start += Math.max(size >> 1, 1)) starts.push(start);
    starts.push(last);
    for (const [number, start] of starts.entries()) {
      const { outputs } = await read(ids.slice(start, start + size));
      const next = starts[number + 1] ?? Infinity;
      while (logits.length < ids.length && 2 * logits.length < start + next + size) {
        logits.push(rowOf(outputs.logits, 1 + logits.length - start));
      }
    }
    return logits;
  }

  /** The likeliest tokens, as the service lists them. */
  function guesses(logits, top) {
    const shares = softmax(logits.slice(0, site.vocabulary));
    const best = [...shares.keys()].sort((a, b) => shares[b] - shares[a]).slice(0, top);
    return best.map((id) => {
      const piece = (tokenizer.id_to_token(id) ?? "").replace(/^\uffff/, ""); // `plainTokenizer`; of a name that is there twice
      return { piece, word: piece.replaceAll("▁", " ").trim(), id, probability: shares[id] };
    });
  }

  /** The tokens of a text, and the characters that each stands for: all of a word where normalising changed its length. */
  function placed(text) {
    const tokens = [];
    let start = 0;
    for (const part of text.split(/(\s+)/u)) {
      const length = Array.from(part).length;
      if (part.trim()) {
        const { ids, tokens: pieces } = tokenizer.encode(part, { add_special_tokens: false });
        const sizes = pieces.map((piece) => Array.from(piece.replace(/^(▁|##)/, "")).length);
        const even = sizes.reduce((sum, size) => sum + size, 0) === length;
        let at = start;
        ids.forEach((id, number) => {
          tokens.push({ id, start: even ? at : start, end: even ? at + sizes[number] : start + length });
          at += sizes[number];
        });
      }
      start += length;
    }
    return tokens;
  }

  /** The best spans of a text of any length, read in windows that overlap. */
  async function answerOf(question, context, top) {
    const asked = encoded(question).slice(0, site.questionLength), tokens = placed(context), characters = Array.from(context);
    const room = site.length - 3 - asked.length, step = Math.min(room, site.stride);
    const windows = [0];
    while (windows.at(-1) + room < tokens.length) windows.push(windows.at(-1) + step);
    const candidates = new Map();
    let nothing = Infinity;
    for (const [number, from] of windows.entries()) {
      const part = tokens.slice(from, from + room), shift = asked.length + 2;
      const { outputs } = await read(asked, part.map(({ id }) => id));
      const [starts, ends] = [outputs.start_logits.data, outputs.end_logits.data];
      nothing = Math.min(nothing, starts[0] + ends[0]);
      const around = (at, window) => {
        const left = at - windows[window], size = Math.min(room, tokens.length - windows[window]);
        return left < 0 || left >= size ? -1 : Math.min(left, size - 1 - left) + 0.01 * size;
      };
      const best = (at) => windows.every((_, other) => around(at, number) > around(at, other) || (other >= number && around(at, number) >= around(at, other)));
      for (const first of largest(starts, site.best)) {
        for (const last of largest(ends, site.best)) {
          const [a, b] = [first - shift, last - shift];
          if (a < 0 || b < a || b >= part.length || b - a >= site.answerLength || !best(from + a)) continue;
          const whole = characters.slice(part[a].start, part[b].end), before = whole.findIndex((sign) => sign.trim());
          const text = whole.join("").trim(), start = part[a].start + before, score = starts[first] + ends[last];
          if (text && score > (candidates.get(text)?.score ?? -Infinity)) {
            candidates.set(text, { text, start, end: start + Array.from(text).length, score });
          }
        }
      }
    }
    const ranked = [...candidates.values()].sort((a, b) => b.score - a.score).slice(0, site.best);
    const refused = site.threshold !== null && (ranked.length === 0 || nothing - ranked[0].score > site.threshold);
    if (site.threshold !== null && ranked[site.best - 1]?.score < nothing) ranked.pop(); // none has its place
    if (site.threshold !== null) ranked.push({ text: "", start: null, end: null, score: nothing });
    const shares = softmax(ranked.map(({ score }) => score));
    const nbest = ranked.map((candidate, place) => ({ ...candidate, probability: shares[place] })).sort((a, b) => b.probability - a.probability);
    const chosen = nbest.find(({ text }) => (refused ? !text : text)) ?? { text: "", start: null, end: null, probability: 0 };
    return { answer: chosen.text, start: chosen.start, end: chosen.end, score: chosen.probability, nbest: nbest.slice(0, top) };
  }

  const vectors = new Map(); // of the texts of the last request: what is asked for again is not computed again

  /** The vectors of texts, `{text, vector, length, cut}` each. */
  async function vectorsOf(texts, truncate) {
    for (const text of texts) {
      if (vectors.has(text) && (truncate || !vectors.get(text).cut)) continue;
      const { outputs, cut } = await read(encoded(text), null, truncate);
      vectors.set(text, measured(text, outputs.sentence_embedding.data.slice(0, site.dimension), cut));
    }
    const found = new Map(texts.map((text) => [text, vectors.get(text)]));
    for (const text of vectors.keys()) if (!found.has(text)) vectors.delete(text);
    return texts.map((text) => found.get(text));
  }

  /** The cosine of every text with every other. */
  async function similarity({ texts, truncate }) {
    const compared = await vectorsOf(texts, truncate);
    return compared.map((a) => compared.map((b) => cosine(a, b)));
  }

  /** Of the site's texts and those of the request, the ones with the largest cosine with the query. */
  async function search({ query, texts, top = 10, truncate }) {
    const [asked, ...others] = await vectorsOf([query, ...texts], truncate);
    const scored = [...library, ...others].map((entry) => ({ text: entry.text, score: cosine(asked, entry), ...truncated(entry.cut) }));
    return scored.sort((a, b) => b.score - a.score).slice(0, top);
  }

  return async (path, body) => {
    if (path === "similarity") return { results: await similarity(body) };
    if (path === "search") return { results: await search(body) };
    const results = [];
    for (const value of body.texts ?? body.questions) results.push(await byPath[path](value, body));
    return { results };
  };
}

/** The texts of a site with their vectors, int8 [N, D]: a cosine asks for no scale. */
export const libraryOf = (texts, vectors, dimension) =>
  texts.map((text, row) => measured(text, vectors.subarray(row * dimension, (row + 1) * dimension)));

const measured = (text, vector, cut = 0) => ({ text, vector, length: Math.sqrt(dot(vector, vector)) || 1, cut });

const cosine = (a, b) => dot(a.vector, b.vector) / (a.length * b.length);

function dot(a, b) {
  let sum = 0;
  for (let place = 0; place < a.length; place++) sum += a[place] * b[place];
  return sum;
}

/** Row `place` of an output [1, S, C], or the one row of [1, C]. */
function rowOf({ data, dims }, place) {
  const width = dims.at(-1), start = dims.length === 3 ? place * width : 0;
  return Array.from(data.slice(start, start + width));
}

const sigmoid = (value) => 1 / (1 + Math.exp(-value));

function softmax(values) {
  const largestValue = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const grown = values.map((value) => Math.exp(value - largestValue));
  const sum = grown.reduce((a, b) => a + b, 0);
  return grown.map((value) => value / sum);
}

/** The places of the `count` largest values, the largest first. */
const largest = (values, count) => [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, count);

/** The words of a sentence and their places in characters. */
function wordsOf(text) {
  const words = [], characters = (from, to) => Array.from(text.slice(from, to)).length;
  let read = 0, end = 0;
  for (const { 0: word, index } of text.matchAll(WORD)) {
    const start = end + characters(read, index);
    read = index + word.length;
    end = start + characters(index, read);
    words.push({ word, start, end });
  }
  return words;
}

/** Entities of words tagged B-, I- and O; an I- that continues nothing begins one. */
function entitiesOf(text, tagged) {
  const characters = Array.from(text), entities = [];
  let open = null;
  for (const { start, end, tag, share } of tagged) {
    const type = tag.slice(2);
    if (tag === "O") open = null;
    else if (open && tag.startsWith("I-") && open.type === type) {
      open.end = end;
      open.shares.push(share);
    } else entities.push(open = { type, start, end, shares: [share] });
  }
  return entities.map(({ type, start, end, shares }) => ({
    type, text: characters.slice(start, end).join(""), start, end, score: shares.reduce((a, b) => a + b, 0) / shares.length,
  }));
}
