// chat.js - a conversation: its messages as the API takes them, and how they are shown
//
// Each message has one article. An answer is open while it streams; an answer with tool calls waits
// for their results, which the person writes, and then goes on.

import {chat} from "./api.js";
import {render} from "./markdown.js";

const main = document.getElementById("conversation");
const el = (name, className, text) => {
  const e = document.createElement(name);
  if (className) e.className = className;
  if (text) e.textContent = text;
  return e;
};

const button = (text, action) => {
  const b = el("button", "", text);
  b.type = "button";
  b.addEventListener("click", action);
  return b;
};

const atEnd = () => main.scrollHeight - main.scrollTop - main.clientHeight < 80;
const toEnd = () => { main.scrollTop = main.scrollHeight; };

// ---- one message -------------------------------------------------------------------------------

class Article {
  constructor(role) {
    this.root = el("article", role);
    this.body = el("div", "body");
    this.foot = el("div", "foot");
    this.root.append(this.body, this.foot);
    main.append(this.root);
    toEnd();
  }

  note(text, className) {
    this.foot.append(el("span", className || "", text));
  }
}

class Answer extends Article {
  constructor() {
    super("assistant");
    this.root.classList.add("open");
    this.message = {role: "assistant", content: ""};
    this.thoughts = el("details");
    this.summary = el("summary", "", "Thinking");
    this.thought = el("div", "thought");
    this.thoughts.append(this.summary, this.thought);
    this.text = el("div", "text");
    this.calls = el("div");
    this.body.append(this.text, this.calls);
    this.reasoning = "";
    this.started = performance.now();
    this.dirty = false;
  }

  take(delta) {
    if (delta.reasoning_content) this.takeReasoning(delta.reasoning_content);
    if (delta.content) this.message.content += delta.content;
    for (const call of delta.tool_calls || []) this.takeCall(call);
    if (!delta.reasoning_content && this.reasoning && !this.thoughtFor) {
      this.thoughtFor = (performance.now() - this.started) / 1000;
      this.summary.textContent = `Thought for ${this.thoughtFor.toFixed(1)} s`;
    }
    this.schedule();
  }

  takeReasoning(text) {
    if (!this.reasoning) this.body.prepend(this.thoughts);
    this.reasoning += text;
    this.thought.textContent = this.reasoning;
  }

  takeCall(delta) {
    const calls = this.message.tool_calls ??= [];
    const call = calls[delta.index] ??= {id: delta.id, type: "function", function: {name: "", arguments: ""}};
    call.function.name += delta.function?.name || "";
    call.function.arguments += delta.function?.arguments || "";
  }

  // What has come is drawn once a frame, however fast it comes.
  schedule() {
    if (this.dirty) return;
    this.dirty = true;
    requestAnimationFrame(() => {
      this.dirty = false;
      this.draw();
    });
  }

  draw() {
    const follow = atEnd();
    this.text.replaceChildren(...render(this.message.content));
    this.calls.replaceChildren(...(this.message.tool_calls || []).map(drawCall));
    if (follow) toEnd();
  }

  close(usage, why) {
    this.root.classList.remove("open");
    this.draw();
    if (why === "length") this.note("cut at the most tokens");
    if (why === "stopped") this.note("stopped");
    const s = (performance.now() - this.started) / 1000;
    if (usage) {
      const n = usage.completion_tokens, cached = usage.prompt_tokens_details?.cached_tokens || 0;
      this.note(`${n} tokens, ${(n / s).toFixed(1)} tok/s`);
      this.note(`prompt ${usage.prompt_tokens}${cached ? ` (${cached} cached)` : ""}`);
    }
  }
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function drawCall(call) {
  const box = el("div", "call");
  box.append(el("h3", "", call.function.name), el("pre", "", pretty(call.function.arguments)));
  return box;
}

// An answer that failed before it began is shown and not sent again.
const said = m => m.role !== "assistant" || m.content || m.tool_calls;

// ---- the conversation --------------------------------------------------------------------------

const KEPT_AS = "conversation";
const KEPT_BYTES = 1 << 20; // of one conversation; its oldest messages are not kept beyond

export class Conversation {
  // settings() gives {request, system}; busy(bool) is told when an answer begins and ends
  constructor(settings, busy) {
    this.settings = settings;
    this.busy = busy;
    this.messages = []; // {message, article}
    this.abort = null;
  }

  get running() { return this.abort !== null; }

  // What this browser keeps: the messages, not how long they took.
  keep() {
    let kept = this.messages.map(m => m.message).filter(said);
    let text = JSON.stringify(kept);
    while (text.length > KEPT_BYTES && kept.length > 1) {
      kept = kept.slice(Math.ceil(kept.length / 4));
      while (kept.length && kept[0].role !== "user") kept.shift();
      text = JSON.stringify(kept);
    }
    try {
      if (kept.length && text.length <= KEPT_BYTES) localStorage.setItem(KEPT_AS, text);
      else localStorage.removeItem(KEPT_AS);
    } catch { /* no room in this browser: the conversation lives as long as the page */ }
  }

  // Shows what was kept; whether there was any.
  restore() {
    let kept = [];
    try {
      kept = JSON.parse(localStorage.getItem(KEPT_AS) || "[]");
    } catch { /* not ours */ }
    if (!Array.isArray(kept)) return false;
    for (const message of kept) {
      if (message?.role === "user") this.showQuestion(message);
      else if (message?.role === "tool") this.showResult(message, "The tool");
      else if (message?.role === "assistant") this.showAnswer(message);
    }
    const last = this.messages.at(-1);
    if (last?.message.tool_calls) this.askForResults(last.article);
    return this.messages.length > 0;
  }

  showAnswer(message) {
    const answer = new Answer();
    const entry = {message, article: answer};
    answer.message = message;
    if (message.reasoning_content) {
      answer.takeReasoning(message.reasoning_content);
      answer.summary.textContent = "Thought";
    }
    this.messages.push(entry);
    answer.root.classList.remove("open");
    answer.draw();
    this.offer(entry);
  }

  clear() {
    this.stop();
    this.messages.forEach(m => m.article.root.remove());
    this.messages = [];
    this.keep();
  }

  stop() { this.abort?.abort(); }

  // Forget message `entry` and all after it.
  cutFrom(entry) {
    const at = this.messages.indexOf(entry);
    for (const m of this.messages.splice(at)) m.article.root.remove();
    this.keep();
  }

  say(text) {
    this.showQuestion({role: "user", content: text});
    return this.answer();
  }

  showQuestion(message) {
    const text = String(message.content), article = new Article("user");
    article.body.textContent = text;
    const entry = {message, article};
    article.foot.append(button("Edit", () => {
      if (this.running) return;
      this.cutFrom(entry);
      const field = document.getElementById("text");
      field.value = text;
      field.dispatchEvent(new Event("input"));
      field.focus();
    }));
    this.messages.push(entry);
    this.keep();
  }

  async answer() {
    const {request, system} = this.settings();
    const messages = this.messages.map(m => m.message).filter(said);
    if (system) messages.unshift({role: "system", content: system});
    const answer = new Answer();
    const entry = {message: answer.message, article: answer};
    this.messages.push(entry);
    this.abort = new AbortController();
    this.busy(true);
    let usage, why, error;
    try {
      for await (const chunk of chat({...request, messages}, this.abort.signal)) {
        usage = chunk.usage || usage;
        const choice = chunk.choices[0];
        if (!choice) continue;
        answer.take(choice.delta);
        why = choice.finish_reason || why;
      }
    } catch (e) {
      if (e.name === "AbortError") why = "stopped";
      else error = e;
    }
    this.abort = null;
    this.finish(entry, usage, why, error);
    this.busy(false);
  }

  finish(entry, usage, why, error) {
    const answer = entry.article;
    answer.close(usage, why);
    if (answer.reasoning) answer.message.reasoning_content = answer.reasoning;
    if (error) {
      const wait = error.retryAfter ? `; try again in ${error.retryAfter} s` : "";
      answer.note(error.message + wait, "error");
    }
    this.offer(entry);
    // An answer that is not whole may end inside a call.
    if (error || why === "stopped") delete answer.message.tool_calls;
    if (answer.message.tool_calls && why === "tool_calls") this.askForResults(answer);
    this.keep();
  }

  // What can be done with an answer.
  offer(entry) {
    const answer = entry.article;
    answer.foot.append(button("Again", () => {
      if (this.running) return;
      this.cutFrom(entry);
      this.answer();
    }));
    if (answer.message.content) {
      answer.foot.append(button("Copy", () => navigator.clipboard?.writeText(answer.message.content)));
    }
  }

  showResult(message, name) {
    const article = new Article("tool");
    const box = el("div", "call");
    box.append(el("h3", "", `${name} gave`), el("pre", "", String(message.content)));
    article.body.append(box);
    this.messages.push({message, article});
  }

  askForResults(answer) {
    const form = el("form", "results");
    const fields = answer.message.tool_calls.map(call => {
      const label = el("label", "", `Result of ${call.function.name}`);
      const field = el("textarea");
      field.rows = 2;
      label.append(field);
      form.append(label);
      return {call, field};
    });
    const send = el("button", "", "Send results");
    form.append(send);
    form.addEventListener("submit", event => {
      event.preventDefault();
      if (this.running) return;
      form.remove();
      for (const {call, field} of fields) {
        this.showResult({role: "tool", tool_call_id: call.id, content: field.value}, call.function.name);
      }
      this.answer();
    });
    answer.body.append(form);
    toEnd();
  }
}
