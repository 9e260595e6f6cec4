// load.js - the charts beside the chat: two minutes of what the server does, a look a second

import {metricsText} from "./api.js";
import * as metrics from "./metrics.js";

const N_POINT = 120;
const PERIOD_MS = 1000;
const SVG = "http://www.w3.org/2000/svg";

const round = x => x >= 100 ? Math.round(x) : x >= 10 ? x.toFixed(1) : x.toFixed(2).replace(/\.?0+$/, "");
const tokens = x => `${round(x)} tok/s`;
const ms = x => x === undefined ? "–" : `${round(x * 1000)} ms`;

// A chart has one or two lines; a point is undefined while there is nothing to say. Its unit writes the
// scale; what is sampled rarely keeps its last figure.
const CHARTS = [
  {title: "Generated", show: p => tokens(p[0]),
    points: (a, b) => [metrics.perSecond(a, b, "vllm:generation_tokens_total")]},
  {title: "Prompts computed", show: p => tokens(p[0]),
    points: (a, b) => [metrics.perSecond(a, b, "vllm:prompt_tokens_total") -
      metrics.perSecond(a, b, "vllm:prompt_tokens_cached_total")]},
  {title: "Requests running, waiting", show: p => `${p[0]}, ${p[1]}`,
    points: (a, b) => [metrics.value(b, "vllm:num_requests_running"),
      metrics.value(b, "vllm:num_requests_waiting")]},
  {title: "Cache pages held, findable", most: (a, b) => pages(b).all,
    show: p => `${p[0]}, ${p[1]}`, points: (a, b) => [pages(b).held, pages(b).cached]},
  {title: "First token", show: p => ms(p[0]),
    points: (a, b) => [metrics.mean(a, b, "vllm:time_to_first_token_seconds")]},
  {title: "Between tokens", show: p => ms(p[0]),
    points: (a, b) => [metrics.mean(a, b, "vllm:inter_token_latency_seconds")]},
];

function pages(look) {
  const of = state => metrics.labelled(look, "fathom_pages", `state="${state}"`);
  const p = {free: of("free"), cached: of("cached"), held: of("held")};
  return {...p, all: p.free + p.cached + p.held};
}

function figures(first, a, b) {
  const hit = metrics.share(first, b, "vllm:prompt_tokens_cached_total", "vllm:prefix_cache_queries_total");
  const drafts = metrics.share(first, b, "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_draft_tokens_total");
  const percent = x => x === undefined ? "–" : `${Math.round(100 * x)} %`;
  return {
    "Streams": metrics.value(b, "fathom_streams"),
    "Prefix found": percent(hit),
    "Drafts kept": percent(drafts),
    "Cache in use": percent(metrics.value(b, "vllm:kv_cache_usage_perc")),
    "Preempted": metrics.value(b, "vllm:num_preemptions_total"),
    "Refused": metrics.value(b, "fathom_requests_refused_total"),
  };
}

// ---- drawing -----------------------------------------------------------------------------------

function svg(name, attributes) {
  const e = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  return e;
}

// The next of 1, 2, 5, 10, 20, ... from a value on: the top of a scale.
function ceiling(x) {
  if (!(x > 0)) return 1;
  const ten = 10 ** Math.floor(Math.log10(x));
  return ten * [1, 2, 5, 10].find(k => x <= k * ten * (1 + 1e-9));
}

class Chart {
  constructor(spec, parent) {
    this.spec = spec;
    this.history = [];
    this.figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    this.now = document.createElement("b");
    this.top = document.createElement("span");
    this.top.className = "scale";
    caption.append(spec.title, this.now);
    const foot = document.createElement("small");
    foot.append("two minutes ago", Object.assign(document.createElement("span"), {textContent: "now"}));
    this.image = svg("svg", {viewBox: `0 0 ${N_POINT - 1} 100`, preserveAspectRatio: "none", role: "img"});
    this.area = svg("path", {class: "area"});
    this.lines = [svg("path", {class: "line"}), svg("path", {class: "line second"})];
    this.dots = svg("path", {class: "line dots"});
    this.image.append(svg("path", {class: "grid", d: `M0 50H${N_POINT - 1}M0 0H${N_POINT - 1}`}),
      this.area, ...this.lines, this.dots);
    this.figure.append(caption, this.top, this.image, foot);
    parent.append(this.figure);
  }

  add(a, b) {
    const points = this.spec.points(a, b);
    this.history.push(points);
    if (this.history.length > N_POINT) this.history.shift();
    if (points[0] !== undefined) this.last = points;
    this.now.textContent = this.spec.show(this.last || points);
    this.image.setAttribute("aria-label", `${this.spec.title}: ${this.now.textContent}`);
    const all = this.history.flat().filter(x => x !== undefined);
    const most = ceiling(Math.max(this.spec.most ? this.spec.most(a, b) : 0, ...all));
    this.top.textContent = this.spec.show([most, 0]).replace(/, 0$/, "");
    this.draw(most);
  }

  draw(most) {
    const skip = N_POINT - this.history.length;
    for (let k = 0; k < 2; k++) {
      let path = "", pen = "M", last = 0, first, dots = "";
      this.history.forEach((p, i) => {
        if (p[k] === undefined) {
          pen = "M";
          return;
        }
        first ??= skip + i;
        last = skip + i;
        const place = `${last} ${(100 - 100 * p[k] / most).toFixed(2)}`;
        // a sample without neighbours is a dot: a line of no length with round ends
        if (pen === "M" && this.history[i + 1]?.[k] === undefined) dots += `M${place}l0 0`;
        path += pen + place;
        pen = "L";
      });
      if (k === 0) this.dots.setAttribute("d", dots);
      this.lines[k].setAttribute("d", path);
      const whole = k === 0 && path && !path.includes("M", 1);
      if (k === 0) this.area.setAttribute("d", whole ? `${path}L${last} 100L${first} 100Z` : "");
    }
  }
}

// watch - draw from now on; `onState` is told "up", or "down" and why
export function watch(onState) {
  const parent = document.getElementById("charts");
  const list = document.getElementById("figures");
  const charts = CHARTS.map(spec => new Chart(spec, parent));
  let first, before;

  function show(look) {
    first ??= look;
    if (before) charts.forEach(chart => chart.add(before, look));
    list.replaceChildren(...Object.entries(figures(first, before || look, look)).map(([name, value]) => {
      const pair = document.createElement("div");
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name;
      dd.textContent = value;
      pair.append(dt, dd);
      return pair;
    }));
    before = look;
  }

  async function look() {
    try {
      show(metrics.parse(await metricsText()));
      onState("up");
    } catch (e) {
      onState("down", e.status === 401 ? "needs an API key: see Settings" : e.status ? e.message : "not reachable");
    }
    setTimeout(look, document.hidden ? 5 * PERIOD_MS : PERIOD_MS);
  }
  look();
}
