// web.js - ties the page together: settings, composer, header

import {apiKey, models} from "./api.js";
import {Conversation} from "./chat.js";
import {watch} from "./load.js";

const by = id => document.getElementById(id);

const SAMPLE_TOOL = [{type: "function", function: {
  name: "get_weather", description: "Get weather for a location",
  parameters: {type: "object", properties: {location: {type: "string"}}, required: ["location"]}}}];

const STARTERS = [
  "Hello, who are you?",
  "If a train travels 120km in 2 hours, and then 180km in 3 hours, what is the average speed?",
  "Tell me a short story.",
];

// ---- settings: kept in this browser, but for the key ---------------------------------------------

const KEPT = ["system", "temperature", "max-tokens", "seed", "tools"];

function restore() {
  for (const id of KEPT) by(id).value = localStorage.getItem(id) || "";
  by("thinking").checked = localStorage.getItem("thinking") === "1";
  by("key").value = apiKey();
}

function keep() {
  for (const id of KEPT) localStorage.setItem(id, by(id).value);
  localStorage.setItem("thinking", by("thinking").checked ? "1" : "");
  apiKey(by("key").value.trim());
  tools();
}

// The tools, or undefined; what is wrong with them is told beside them.
function tools() {
  const text = by("tools").value.trim();
  let list, error = "";
  try {
    if (text) list = JSON.parse(text);
    if (list && !Array.isArray(list)) error = "the tools are not an array";
  } catch (e) {
    error = `the tools are not JSON: ${e.message}`;
  }
  by("settings-error").textContent = error;
  return error ? undefined : list;
}

const number = id => by(id).value === "" ? undefined : Number(by(id).value);

function settings() {
  const request = {
    model: by("model").value || undefined,
    temperature: number("temperature"),
    max_tokens: number("max-tokens"),
    seed: number("seed"),
    tools: tools(),
    chat_template_kwargs: {thinking: by("thinking").checked},
  };
  return {request, system: by("system").value};
}

// ---- header ------------------------------------------------------------------------------------

let loaded = false;

async function loadModels() {
  const list = await models();
  by("model").replaceChildren(...list.map(m => new Option(m.id, m.id)));
  document.title = `${list[0].id} · fathom`;
  loaded = true;
}

function showState(state, why) {
  const field = by("state");
  field.className = state;
  field.textContent = state === "up" ? "ready" : why;
  if (state === "up" && !loaded) loadModels().catch(() => { loaded = false; });
}

function toggle(id, shown, apply) {
  by(id).addEventListener("click", () => apply(by(id).getAttribute("aria-expanded") !== "true"));
  apply(shown);
}

function showSettings(shown) {
  by("settings").hidden = !shown;
  by("show-settings").setAttribute("aria-expanded", shown);
}

function showLoad(shown) {
  document.body.classList.toggle("load", shown);
  by("show-load").setAttribute("aria-expanded", shown);
}

// ---- composer ----------------------------------------------------------------------------------

const conversation = new Conversation(settings, busy => {
  by("send").hidden = busy;
  by("stop").hidden = !busy;
  if (!busy && matchMedia("(hover: hover)").matches) by("text").focus();
});

function grow() {
  const field = by("text");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

function send() {
  const text = by("text").value.trim();
  if (!text || conversation.running) return;
  tools();
  if (by("settings-error").textContent) { // a message without the tools would be another one
    showSettings(true);
    by("tools").focus();
    return;
  }
  by("welcome").hidden = true;
  if (window.innerWidth < 960) showLoad(false);
  by("text").value = "";
  grow();
  conversation.say(text);
}

function start() {
  restore();
  by("settings").addEventListener("input", keep);
  by("settings").addEventListener("submit", event => event.preventDefault());
  by("sample-tool").addEventListener("click", () => {
    by("tools").value = JSON.stringify(SAMPLE_TOOL, null, 2);
    keep();
  });
  toggle("show-settings", false, showSettings);
  toggle("show-load", window.innerWidth >= 960, showLoad);
  by("new").addEventListener("click", () => {
    conversation.clear();
    by("welcome").hidden = false;
  });
  by("stop").addEventListener("click", () => conversation.stop());
  by("composer").addEventListener("submit", event => {
    event.preventDefault();
    send();
  });
  by("text").addEventListener("input", grow);
  by("text").addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  by("starters").append(...STARTERS.map(text => {
    const item = document.createElement("li"), starter = document.createElement("button");
    starter.type = "button";
    starter.textContent = text;
    starter.addEventListener("click", () => {
      by("text").value = text;
      send();
    });
    item.append(starter);
    return item;
  }));
  if (conversation.restore()) by("welcome").hidden = true;
  watch(showState);
}

start();
