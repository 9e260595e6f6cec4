// docs.js - the page "docs": openapi.json as tables
import {openapi} from "./api.js";

const at = (id) => document.getElementById(id);

function element(name, ...children) {
  const e = document.createElement(name);
  e.append(...children);
  return e;
}

// "integer, 0 to 20, needed"
function told(schema, needed) {
  const lo = schema.exclusiveMinimum ?? schema.minimum;
  const words = [schema.type || ""];
  if (lo !== undefined) {
    const from = (schema.exclusiveMinimum === undefined ? "" : "above ") + lo;
    words.push(schema.maximum === undefined ? "from " + from : from + " to " + schema.maximum);
  }
  if (needed) words.push("needed");
  return words.filter((w) => w).join(", ");
}

function fieldsOf(operation) {
  const schema = operation.requestBody?.content["application/json"]?.schema;
  const rows = Object.entries(schema?.properties || {}).map(([name, s]) =>
    element("tr", element("td", name), element("td", told(s, schema.required?.includes(name)))));
  return rows.length ? element("table", element("tbody", ...rows)) : "";
}

function show(api) {
  const list = element("ul");
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const title = element("h2", element("b", method.toUpperCase()), " " + path);
      title.id = method + path;
      const link = element("a", path);
      link.href = "#" + title.id;
      list.append(element("li", method.toUpperCase() + " ", link));
      const types = Object.keys(operation.responses["200"]?.content || {}).join(", ");
      const note = element("p", types ? "Answers " + types + "." : "");
      note.className = "note";
      at("paths").append(title, note, fieldsOf(operation));
    }
  }
  at("contents").append(list);
  at("state").textContent = api.info.title + " " + api.info.version;
}

try {
  show(await openapi());
} catch (e) {
  at("state").className = "error";
  at("state").textContent = e.message;
}
