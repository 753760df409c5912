/** The demo page: a tab for each thing that the served models can do. */

import { ask, askForKeysWith, forgetKey, hasKey } from "./api.js";
import { make } from "./elements.js";
import { faultBox, makePanel } from "./panel.js";
import { TABS } from "./tabs/index.js";

const BEAT = 500; // milliseconds from one look at models that are being loaded to the next
const element = (id) => document.getElementById(id);
const main = element("main"), strip = element("tabs"), dialog = element("key"), forget = element("forget");

const say = (text) => { element("said").textContent = text; };

// --- the key ---

let waiting = null; // requests that are refused at once share one question

/** A key that a person types, or null. */
function keyFromPerson(wasRefused) {
  waiting ??= new Promise((resolve) => {
    element("key-why").textContent = wasRefused
      ? "The key it was given is not one it knows."
      : "Whoever runs it has one for you.";
    const input = element("key-value");
    input.value = "";
    dialog.returnValue = "cancel"; // what Escape leaves
    dialog.onclose = () => {
      waiting = null;
      resolve(dialog.returnValue === "use" ? input.value.trim() : null);
    };
    dialog.showModal();
    input.focus();
  });
  return waiting;
}

forget.onclick = () => {
  forgetKey();
  location.reload();
};

// --- the tabs ---

/** Whether a model can do what a tab is for. */
const can = (model, tab) => model.kinds.includes(tab.kind);

/** The models that can do it, those first that can also do what the tab's example asks for. */
const able = (models, tab) => {
  const [best, others] = [true, false].map((wanted) => models.filter(
    (model) => can(model, tab) && (!tab.prefers || model.kinds.includes(tab.prefers)) === wanted));
  return [...best, ...others];
};

function openTabs(models) {
  const shown = TABS.filter((tab) => models.some((model) => can(model, tab)));
  const panels = new Map();
  const buttons = shown.map((tab) => make("button", {
    type: "button", role: "tab", id: `tab-${tab.kind}`, "aria-controls": `panel-${tab.kind}`, onclick: () => { location.hash = tab.kind; },
  }, tab.name));
  const frames = shown.map((tab) => make("div", {
    role: "tabpanel", id: `panel-${tab.kind}`, "aria-labelledby": `tab-${tab.kind}`, hidden: true,
  }));

  function choose(tab) {
    shown.forEach((other, number) => {
      const chosen = other === tab;
      buttons[number].setAttribute("aria-selected", chosen);
      buttons[number].tabIndex = chosen ? 0 : -1;
      frames[number].hidden = !chosen;
    });
    history.replaceState(null, "", `#${tab.kind}`);
    if (panels.has(tab)) return;
    const panel = makePanel(tab, able(models, tab), say);
    panels.set(tab, panel);
    frames[shown.indexOf(tab)].append(panel.node);
    panel.run(); // its example
  }

  strip.onkeydown = (event) => {
    const at = buttons.indexOf(document.activeElement), last = buttons.length - 1;
    const to = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    buttons[to].focus();
    choose(shown[to]);
  };
  const named = () => shown.find((tab) => `#${tab.kind}` === location.hash);
  window.onhashchange = () => named() && choose(named());
  strip.replaceChildren(...buttons);
  strip.hidden = shown.length < 2;
  main.replaceChildren(...frames);
  if (shown.length === 0) main.append(make("p", {}, "The models served here do nothing that this page could show."));
  else choose(named() ?? shown[0]);
}

/** Opens the tabs once all models are loaded; until then their precision is not known. */
async function start() {
  const note = make("p.muted", {}, "Looking up the models …");
  main.replaceChildren(note);
  try {
    let { models } = await ask("models");
    while (models.some((model) => model.precision === null)) {
      note.textContent = models.find((model) => model.loading)?.loading ?? "The models are being loaded …";
      await new Promise((resolve) => setTimeout(resolve, BEAT));
      ({ models } = await ask("models"));
    }
    openTabs(models);
  } catch (error) {
    main.replaceChildren(faultBox(error, start));
  }
  forget.hidden = !hasKey();
}

askForKeysWith(async (wasRefused) => {
  const key = await keyFromPerson(wasRefused);
  forget.hidden = key === null;
  return key;
});
start();
