/**
 * The tabs, in their order. Each is an object:
 *
 * - `kind`: of pipeline, or `search`, which sites alone have; a tab is shown if a model has it. `path`: of the endpoint.
 * - `name` on the tab, `title` and `lead` (a text, or a function of the model) over the panel, `verb` on the button, `empty` where there is nothing to
 *   ask, `pause` in milliseconds before what is typed is sent.
 * - `prefers`, where there is one: a kind that its example needs, too; models that have it come first.
 * - `open(example, model)` makes the form, filled with the model's example: `fields` (nodes), `tools` (more buttons, or none),
 *   `body()` (the request without the model, or null), and `show(answer, body)`: the answer as `nodes`, and as a sentence,
 *   `said`, for a screen reader.
 *   `choose(model)`, where there is one, is told which model is asked.
 */

import { answer } from "./answer.js";
import { caption } from "./caption.js";
import { choose } from "./choose.js";
import { classify, score } from "./classify.js";
import { fillMask } from "./fill-mask.js";
import { passes } from "./passes.js";
import { search } from "./search.js";
import { sentenceOrder } from "./sentence-order.js";
import { similarity } from "./similarity.js";
import { tag } from "./tag.js";

export const TABS = [fillMask, sentenceOrder, answer, classify, score, tag, choose, search, similarity, caption, passes];
