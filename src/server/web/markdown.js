// markdown.js - the Markdown that models write, as elements; text never becomes markup by itself
//
// Headings, paragraphs, lists, task lists, quotes, tables, fenced and inline code, bold, italic, strike,
// links, formulas in TeX.
// A link is only made of http, https and mailto addresses.

function element(name, ...children) {
  const e = document.createElement(name);
  e.append(...children);
  return e;
}

// A formula as MathML; what is none, or not yet whole, stays as it was written.
function formula(tex, source, display) {
  const box = element(display ? "div" : "span");
  box.className = "formula";
  try {
    temml.render(tex, box, {displayMode: display, throwOnError: true, maxExpand: 200});
  } catch {
    box.replaceChildren(element("code", source));
  }
  return box;
}

const INLINE = /(`+)([^]*?[^`])\1(?!`)|\*\*([^]+?)\*\*|\*([^\s*](?:[^*]*[^\s*])?)\*|~~([^]+?)~~|\[([^\]]+)\]\(([^\s)]+)\)|\$\$([^$]+?)\$\$|\\\[([^]+?)\\\]|\\\(([^]+?)\\\)|\$(?![\s$])([^$\n]*?[^\s$\\])\$(?!\d)|<br\s*\/?>/g;

function inline(text) {
  const out = [];
  let from = 0;
  for (const m of text.matchAll(INLINE)) {
    out.push(text.slice(from, m.index));
    from = m.index + m[0].length;
    if (m[2] !== undefined) out.push(element("code", m[2].trim()));
    else if (m[3] !== undefined) out.push(element("strong", ...inline(m[3])));
    else if (m[4] !== undefined) out.push(element("em", ...inline(m[4])));
    else if (m[5] !== undefined) out.push(element("s", ...inline(m[5])));
    else if (m[8] !== undefined || m[9] !== undefined) out.push(formula(m[8] ?? m[9], m[0], true));
    else if (m[10] !== undefined || m[11] !== undefined) out.push(formula(m[10] ?? m[11], m[0], false));
    else if (m[7] === undefined) out.push(element("br"));
    else if (/^(https?:|mailto:)/i.test(m[7])) {
      const a = element("a", ...inline(m[6]));
      a.href = m[7];
      a.rel = "noreferrer noopener";
      a.target = "_blank";
      out.push(a);
    } else out.push(m[0]);
  }
  out.push(text.slice(from));
  return out.filter(x => x !== "");
}

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ROW = /^\s*\|.*\|\s*$/;
const DIVIDER = /^\s*\|(\s*:?-+:?\s*\|)+\s*$/;

const FORMULA = /^\s*(\$\$|\\\[)/;

const special = line => FORMULA.test(line) || FENCE.test(line) || ITEM.test(line) || HEADING.test(line) || /^>/.test(line);

function takeFence(lines, at) {
  const [, fence, language] = lines[at].match(FENCE);
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(fence)) end++;
  const code = element("code", lines.slice(at + 1, end).join("\n"));
  if (language) code.dataset.language = language;
  return [element("pre", code), end + 1];
}

// A formula of its own lines; undefined while its end is not there.
function takeFormula(lines, at) {
  const close = lines[at].match(FORMULA)[1] === "$$" ? "$$" : "\\]";
  let text = lines[at].trim().slice(2), end = at;
  while (!text.includes(close) && ++end < lines.length && lines[end].trim() !== "") text += "\n" + lines[end];
  const stop = text.indexOf(close);
  if (stop < 0 || text.slice(stop + 2).trim() !== "") return undefined;
  return [formula(text.slice(0, stop), lines.slice(at, end + 1).join("\n"), true), end + 1];
}

// Items of one depth; deeper lines are the inside of the item before them.
function takeList(lines, at) {
  const [, indent, mark] = lines[at].match(ITEM);
  const list = element(/\d/.test(mark) ? "ol" : "ul");
  if (/\d/.test(mark)) list.start = parseInt(mark, 10);
  while (at < lines.length) {
    const m = lines[at].match(ITEM);
    if (!m || m[1].length > indent.length + 1 || m[1].length < indent.length) break;
    const task = m[3].match(/^\[([ xX])\]\s+(.*)$/);
    const inside = [task ? `${task[1] === " " ? "\u2610" : "\u2611"} ${task[2]}` : m[3]];
    for (at++; at < lines.length; at++) {
      const deeper = lines[at].startsWith(" ".repeat(indent.length + 2));
      const gap = lines[at] === "" && lines[at + 1]?.startsWith(" ".repeat(indent.length + 2));
      if (!deeper && !gap) break;
      inside.push(lines[at].slice(indent.length + 2));
    }
    const item = element("li", ...blocks(inside));
    if (item.children.length === 1 && item.firstChild.tagName === "P") {
      item.replaceChildren(...item.firstChild.childNodes);
    }
    list.append(item);
    while (lines[at] === "" && ITEM.test(lines[at + 1] || "")) at++;
  }
  return [list, at];
}

function takeTable(lines, at) {
  const cells = line => line.trim().slice(1, -1).split("|").map(c => inline(c.trim()));
  const row = (line, name) => element("tr", ...cells(line).map(c => element(name, ...c)));
  const body = element("tbody");
  const table = element("table", element("thead", row(lines[at], "th")), body);
  for (at += 2; at < lines.length && ROW.test(lines[at]); at++) body.append(row(lines[at], "td"));
  return [table, at];
}

function takeQuote(lines, at) {
  const inside = [];
  for (; at < lines.length && lines[at].startsWith(">"); at++) inside.push(lines[at].replace(/^> ?/, ""));
  return [element("blockquote", ...blocks(inside)), at];
}

function takeParagraph(lines, at) {
  const p = element("p", ...inline(lines[at]));
  for (at++; at < lines.length && lines[at] !== "" && !special(lines[at]); at++) {
    p.append(element("br"), ...inline(lines[at]));
  }
  return [p, at];
}

function takeBlock(lines, at) {
  const line = lines[at];
  if (FENCE.test(line)) return takeFence(lines, at);
  if (RULE.test(line)) return [element("hr"), at + 1];
  if (ITEM.test(line)) return takeList(lines, at);
  if (ROW.test(line) && DIVIDER.test(lines[at + 1] || "")) return takeTable(lines, at);
  if (line.startsWith(">")) return takeQuote(lines, at);
  const own = FORMULA.test(line) && takeFormula(lines, at);
  if (own) return own;
  const heading = line.match(HEADING);
  if (heading) return [element("h" + Math.min(6, heading[1].length + 2), ...inline(heading[2])), at + 1];
  return takeParagraph(lines, at);
}

function blocks(lines) {
  const out = [];
  for (let at = 0; at < lines.length;) {
    if (lines[at].trim() === "") {
      at++;
      continue;
    }
    const [block, next] = takeBlock(lines, at);
    out.push(block);
    at = next;
  }
  return out;
}

// render - the elements of a text
export const render = text => blocks(text.split("\n"));
