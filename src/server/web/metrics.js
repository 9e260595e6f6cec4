// metrics.js - what /metrics says, and what happened between two looks at it

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;

// A look: sums by name, and each sample by "name{labels}".
export function parse(text) {
  const look = {at: performance.now() / 1000, sums: {}, samples: {}};
  for (const line of text.split("\n")) {
    const m = line.match(LINE);
    if (!m) continue;
    const value = Number(m[3]);
    look.sums[m[1]] = (look.sums[m[1]] || 0) + value;
    look.samples[`${m[1]}{${m[2] || ""}}`] = value;
  }
  return look;
}

const grown = (a, b, name) => Math.max(0, (b.sums[name] || 0) - (a.sums[name] || 0));

// perSecond - growth of a counter between looks a and b
export const perSecond = (a, b, name) => grown(a, b, name) / Math.max(1e-3, b.at - a.at);

// mean - of what a histogram took in between looks a and b; undefined when that is nothing
export function mean(a, b, name) {
  const n = grown(a, b, name + "_count");
  return n ? grown(a, b, name + "_sum") / n : undefined;
}

// share - of the sum of counters that is the first one's, between looks a and b
export function share(a, b, part, whole) {
  const n = grown(a, b, whole);
  return n ? grown(a, b, part) / n : undefined;
}

export const value = (look, name) => look.sums[name] || 0;

// labelled - the sample of `name` whose labels hold all of the text `label`
export function labelled(look, name, label) {
  for (const [key, v] of Object.entries(look.samples)) {
    if (key.startsWith(name + "{") && key.includes(label)) return v;
  }
  return 0;
}
