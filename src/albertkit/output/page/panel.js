/** A tab's panel: its form, the request it makes, and what comes back. Typing on ends the request that is under way. */

import { ask, ServiceError } from "./api.js";
import { asCommand } from "./command.js";
import { counted, make } from "./elements.js";
import { choiceField } from "./fields.js";

const TRUNCATE = ', or say "truncate": true'; // how the service's hint ends where a text is too long: a button here
const PAUSE = 400; // milliseconds without a key before what is written is sent

/**
 * The panel of a tab.
 *
 * @param {object} tab see `tabs/index.js`.
 * @param {object[]} models those that can do it, as `/models` lists them.
 * @param {(text: string) => void} say for those who do not see the results.
 * @returns {{node: HTMLElement, run: () => Promise<void>}}
 */
export function makePanel(tab, models, say) {
  const { fields, tools = [], body, show, choose } = tab.open(models[0].examples?.[tab.kind], models[0]);
  const results = make("div.results", { tabIndex: -1, role: "region", "aria-label": `Answer: ${tab.name}` });
  const stop = make("button", { type: "button", hidden: true }, "Stop");
  const model = modelChoice(models, choose);
  const form = make("form", { "aria-label": tab.name }, ...fields,
    make("div.actions", {}, make("button.main", { type: "submit" }, tab.verb ?? "Ask"), ...tools, stop, model.node));
  const command = make("pre", { tabIndex: 0 });
  const request = make("details.request", {}, make("summary", {}, "The same on a command line"), command);
  let pending = null, timer = 0, isCut = false; // isCut: texts that are too long are cut, not refused

  const settle = (nodes) => {
    const hadFocus = results.contains(document.activeElement);
    results.replaceChildren(...nodes);
    if (hadFocus) results.focus(); // and not at the top of the page
    setBusy(false);
  };
  const setBusy = (busy) => {
    results.setAttribute("aria-busy", busy);
    stop.hidden = !busy;
  };
  const cancel = () => {
    clearTimeout(timer);
    pending?.abort();
    pending = null;
    setBusy(false);
  };

  async function run() {
    cancel();
    const content = body();
    request.hidden = true;
    if (content === null) return settle([make("p.muted", {}, tab.empty)]);
    const wanted = withModel(isCut ? { ...content, truncate: true } : content, model.value);
    command.textContent = asCommand(tab.path, wanted);
    request.hidden = !command.textContent;
    const asked = pending = new AbortController();
    if (!results.hasChildNodes()) results.append(make("p.muted", {}, "Asking the model …"));
    setBusy(true);
    try {
      const answer = await ask(tab.path, wanted, asked.signal);
      if (asked.signal.aborted) return;
      const { nodes, said } = show(answer, wanted);
      settle([...nodes, ...cutNote(answer)]);
      say(said);
    } catch (error) {
      if (asked.signal.aborted) return;
      settle([faultBox(error, run, () => {
        isCut = true;
        run();
      })]);
    } finally {
      if (pending === asked) pending = null;
    }
  }

  stop.onclick = () => {
    cancel();
    results.replaceChildren(make("p.muted", {}, "Stopped."));
    say("Stopped.");
  };
  form.onsubmit = (event) => {
    event.preventDefault();
    run();
  };
  form.oninput = () => {
    cancel();
    timer = setTimeout(run, tab.pause ?? PAUSE);
  };
  const lead = typeof tab.lead === "function" ? tab.lead(models[0]) : tab.lead;
  const node = make(`section.panel.${tab.kind}`, {},
    make("div.intro", {}, make("h2", {}, tab.title), make("p.muted", {}, lead)),
    make("div.work", {}, make("div", {}, form, request), results));
  return { node, run };
}

/**
 * What went wrong, and what to do.
 *
 * @param {Error} error of the service, or of this page.
 * @param {() => void} again tries once more.
 * @param {() => void} cut does so with the texts cut; for requests that have texts.
 */
export function faultBox(error, again, cut) {
  const isOurs = !(error instanceof ServiceError);
  if (isOurs) console.error(error);
  const canCut = cut && !isOurs && error.hint.endsWith(TRUNCATE);
  const hint = canCut ? error.hint.slice(0, -TRUNCATE.length) : isOurs ? "reload the page; the service and the page may be of different versions" : error.hint;
  return make("div.fault", { role: "alert" },
    make("p", {}, ...(error.slug ? [make("span.slug", {}, error.slug), " "] : []), make("span", { dir: "auto" }, error.message)),
    ...(hint ? [make("p.hint", {}, make("strong", {}, "Hint: "), hint)] : []),
    ...(canCut ? [make("button", { type: "button", onclick: cut }, "Cut the text")] : []),
    make("button", { type: "button", onclick: again }, "Try again"));
}

/** How much of the texts was not read, where something was. */
function cutNote({ results }) {
  const cut = Array.isArray(results) ? results.reduce((sum, { truncated = 0 }) => sum + truncated, 0) : 0;
  return cut ? [make("p.note", {}, `${counted(cut, "token")} at the end not read: the text is longer than the model reads.`)] : [];
}

function withModel(body, model) {
  if (!(body instanceof FormData)) return { ...body, model };
  body.set("model", model);
  return body;
}

/** The name and precision of the one model, or a choice; with what its engine fell back from; `choose` is told of it. */
function modelChoice(models, choose) {
  const notes = make("ul.notes");
  const tell = (model) => {
    notes.replaceChildren(...(model.notes ?? []).map((note) => make("li", {}, note)));
    choose?.(model);
  };
  const named = (model) => (model.precision ? `${model.name} · ${model.precision}` : model.name);
  tell(models[0]);
  if (models.length === 1) {
    const line = make("span", {}, "Model ", make("b", {}, named(models[0])));
    return { node: make("div.model", {}, line, notes), value: models[0].name };
  }
  const { row, control } = choiceField("Model", models.map((model) => [model.name, named(model)]));
  control.addEventListener("input", () => tell(models[control.selectedIndex]));
  return { node: make("div.model", {}, row, notes), get value() { return control.value; } };
}
