// api.js - the server's endpoints, and its streams as sequences of objects

// The key stays in this tab: it is gone when the tab is closed.
export function apiKey(value) {
  if (value !== undefined) sessionStorage.setItem("key", value);
  return sessionStorage.getItem("key") || "";
}

function headers() {
  const h = {"Content-Type": "application/json"};
  if (apiKey()) h.Authorization = "Bearer " + apiKey();
  return h;
}

async function failure(response) {
  let message = response.status + " " + response.statusText;
  try {
    message = (await response.json()).error.message || message;
  } catch { /* the body is not the API's: the status has to do */ }
  const e = new Error(message);
  e.status = response.status;
  e.retryAfter = response.headers.get("Retry-After");
  return e;
}

async function get(path) {
  const response = await fetch(path, {headers: headers(), cache: "no-store"});
  if (!response.ok) throw await failure(response);
  return response;
}

export const models = async () => (await (await get("v1/models")).json()).data;
export const openapi = async () => (await get("openapi.json")).json();
export const metricsText = async () => (await get("metrics")).text();

// The events of a response's body. Every line that is not "data:" is a comment.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

// chat - the chunks of a streamed answer; throws what the server says, before or within the stream
export async function* chat(request, signal) {
  const body = {...request, stream: true, stream_options: {include_usage: true}};
  const response = await fetch("v1/chat/completions",
    {method: "POST", headers: headers(), body: JSON.stringify(body), signal});
  if (!response.ok) throw await failure(response);
  for await (const chunk of events(response.body)) {
    if (chunk.error) throw new Error(chunk.error.message);
    yield chunk;
  }
}
