// The server, as its API shows it.
//
//   ask(messages, …) ─fetch─► 200: events ─► { text, reasoning, usage, end }
//                          ├─ 429, 503: told how long, and again ─┐
//                          └─ other: ApiError                     └─► ask

import { key } from "./store.js";

/** What the server says does not work. `status` 0: it cannot be reached. */
export class ApiError extends Error {
  constructor(status, message, retry = null) {
    super(message);
    this.status = status;
    this.retry = retry;
  }
}

function headers(more = {}) {
  const value = key.get();
  return value ? { ...more, Authorization: `Bearer ${value}` } : more;
}

async function reach(path, options) {
  try {
    return await fetch(path, { cache: "no-store", ...options, headers: headers(options?.headers) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached. Is it still running?");
  }
}

async function failure(response) {
  let message = `The server answered with status ${response.status}.`;
  try {
    message = (await response.json()).error?.message ?? message;
  } catch {
    // Some proxy between us answered in its own words.
  }
  const retry = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  return new ApiError(response.status, message, Number.isFinite(retry) ? retry : null);
}

/** Names of the models. */
export async function models() {
  const response = await reach("v1/models");
  if (!response.ok) throw await failure(response);
  return (await response.json()).data;
}

/** Numbers of Prometheus' page by name, label sets added up; `null` if they are not to be had now. */
export async function metrics() {
  let response;
  try {
    response = await reach("metrics");
  } catch {
    return null;
  }
  if (!response.ok) return null;
  const found = {};
  for (const line of (await response.text()).split("\n")) {
    const m = line.match(/^([a-z_:]+)(?:\{.*\})? (\S+)$/);
    if (m) found[m[1]] = (found[m[1]] ?? 0) + Number(m[2]);
  }
  return found;
}

/** The data of a response's events, one after the other. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const lines = held.split("\n");
    held = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
  }
}

function wait(seconds, signal, tick) {
  return new Promise((resolve, reject) => {
    let left = seconds;
    const stop = () => { clearInterval(timer); reject(new DOMException("stopped", "AbortError")); };
    const timer = setInterval(() => {
      left -= 1;
      if (left > 0) return tick(left);
      clearInterval(timer);
      signal.removeEventListener("abort", stop);
      return resolve();
    }, 1000);
    tick(left);
    signal.addEventListener("abort", stop, { once: true });
  });
}

const TRIES = 60;

/** Asks for an answer. `on.piece({text, reasoning})` for every piece, `on.wait(seconds, why)` while the server has no
 *  room or no model yet. Gives `{usage, end}`. */
export async function ask(body, signal, on) {
  for (let tries = 1; ; tries += 1) {
    const response = await reach("v1/chat/completions", {
      method: "POST",
      signal,
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    });
    if (response.ok) return read(response, on);
    const error = await failure(response);
    if (![429, 503].includes(error.status) || error.retry === null || error.retry > 300 || tries >= TRIES) throw error;
    await wait(Math.max(error.retry, 1), signal, (left) => on.wait(left, error));
  }
}

async function read(response, on) {
  let usage = null;
  let end = null;
  for await (const data of events(response)) {
    if (data === "[DONE]") return { usage, end };
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(500, event.error.message ?? "The server failed.");
    usage = event.usage ?? usage;
    const choice = event.choices?.[0];
    if (!choice) continue;
    end = choice.finish_reason ?? end;
    const { content, reasoning_content: reasoning } = choice.delta ?? {};
    if (content || reasoning) on.piece({ text: content ?? "", reasoning: reasoning ?? "" });
  }
  throw new ApiError(0, "The connection broke before the answer's end.");
}
