// The page: chats at the side, one of them in the middle, what is written at the bottom.
//
//   chat (data) ─show─► log (nodes)      submit ─► answer() ─api─► pieces ─► message's node, once a frame

import { ApiError, ask, metrics, models } from "./api.js";
import { copyText, make, render } from "./markdown.js";
import { allChats, dropAllChats, dropChat, keepChat, key, setting } from "./store.js";

const $ = (id) => document.getElementById(id);
const [log, input] = [$("log"), $("input")];

let chats = [];
let chat = null;
/** The answer on its way: `{ chat, message, stop }`. */
let running = null;

const say = (text) => { $("status").textContent = text; };

// ── Chats ────────────────────────────────────────────────────────────────────────────────────────────────────────────

function newChat() {
  return { id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, title: "", changed: Date.now(), system: "", messages: [] };
}

/** Chats that were deleted: an answer that is on its way to one does not bring it back. */
const deleted = new WeakSet();

async function keep(changed) {
  if (deleted.has(changed)) return;
  changed.changed = Date.now();
  if (!chats.includes(changed)) chats.unshift(changed);
  chats.sort((a, b) => b.changed - a.changed);
  listChats();
  try {
    await keepChat(changed);
  } catch (error) {
    say(`This chat cannot be kept: ${error?.message ?? error}`);
  }
}

const titleOf = (c) => c.title || "New chat";

function listChats() {
  $("no-chats").hidden = chats.length > 0;
  const row = (c) => {
    const title = titleOf(c);
    return make("li", { class: c === chat ? "current" : null },
      make("button", { type: "button", class: "pick", "aria-current": c === chat ? "true" : null, onclick: () => pick(c) }, title),
      make("button", { type: "button", class: "icon", "aria-label": `Rename “${title}”`, onclick: () => rename(c) }, "✎"),
      make("button", { type: "button", class: "icon", "aria-label": `Export “${title}”`, onclick: () => exportChat(c) }, "⤓"),
      make("button", { type: "button", class: "icon", "aria-label": `Delete “${title}”`, onclick: () => remove(c) }, "✕"));
  };
  $("chats").replaceChildren(...chats.map(row));
}

function pick(c) {
  chat = c;
  setting("chat", c.id);
  show();
  listChats();
  closeSide();
  input.focus();
}

async function rename(c) {
  const title = await askFor({ title: "Rename the chat", value: titleOf(c), yes: "Rename" });
  if (!title?.trim()) return;
  c.title = title.trim();
  await keep(c);
}

async function remove(c) {
  if (!await askFor({ title: "Delete the chat?", text: `“${titleOf(c)}” will be gone.`, yes: "Delete" })) return;
  deleted.add(c);
  if (running?.chat === c) running.stop();
  chats = chats.filter((other) => other !== c);
  await dropChat(c.id);
  if (chat === c) pick(chats[0] ?? newChat());
  else listChats();
}

function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function exportChat(c) {
  const parts = c.messages.map((m) => `## ${m.role === "user" ? "You" : "Answer"}\n\n${m.content}`);
  const system = c.system ? [`## System prompt\n\n${c.system}`] : [];
  const name = titleOf(c).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "chat";
  download(`${name}.md`, [`# ${titleOf(c)}`, ...system, ...parts].join("\n\n") + "\n", "text/markdown");
}

/** Asks the user something; gives the text, true, or null. */
function askFor({ title, text = "", value = null, yes }) {
  $("ask-title").textContent = title;
  $("ask-text").textContent = text;
  $("ask-text").hidden = !text;
  $("ask-input").hidden = value === null;
  $("ask-input").value = value ?? "";
  $("ask-yes").textContent = yes;
  const dialog = $("ask");
  dialog.returnValue = "";
  dialog.showModal();
  if (value !== null) $("ask-input").select();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const agreed = dialog.returnValue === "yes";
      resolve(agreed ? (value === null ? true : $("ask-input").value) : null);
    }, { once: true });
  });
}

// ── One chat ─────────────────────────────────────────────────────────────────────────────────────────────────────────

function show() {
  log.replaceChildren(...chat.messages.map((message) => messageNode(chat, message)));
  $("empty").hidden = chat.messages.length > 0;
  $("system").value = chat.system;
  document.title = chat.title ? `${chat.title} · Zinc` : "Zinc";
  showRunning();
  scrollToEnd();
}

function messageNode(owner, message) {
  const isUser = message.role === "user";
  const node = make("article", { class: isUser ? "user" : "answer", "aria-label": isUser ? "You" : "Answer", tabindex: "-1" });
  const body = make("div", { class: "body" });
  const tools = make("div", { class: "tools" });
  const button = (label, act) => make("button", { type: "button", class: "small", onclick: act }, label);
  const copy = button("Copy", async () => {
    copy.textContent = await copyText(message.content) ? "Copied" : "Cannot copy";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  if (isUser) {
    body.textContent = message.content;
    tools.append(copy, button("Edit", () => edit(owner, message, node)));
    node.append(body, tools);
    return node;
  }
  const thoughts = make("div", { class: "thoughts" });
  const summary = make("summary", {}, "Reasoning");
  const details = make("details", { hidden: true }, summary, thoughts);
  const note = make("span", { class: "quiet note" });
  const trouble = make("p", { class: "trouble", role: "alert", hidden: true });
  tools.append(copy, button("Try again", () => retry(owner, message)), note);
  node.append(details, body, trouble, tools);
  node.update = () => {
    const busy = running?.message === message;
    node.setAttribute("aria-busy", busy);
    node.classList.toggle("busy", busy);
    details.hidden = !message.reasoning;
    summary.textContent = busy && !message.content ? "Reasoning …" : "Reasoning";
    if (message.reasoning) render(thoughts, message.reasoning);
    render(body, message.content);
    trouble.hidden = !message.error;
    trouble.textContent = message.error ?? "";
    note.textContent = message.note ?? "";
    tools.hidden = busy;
    copy.hidden = !message.content;
  };
  nodes.set(message, node);
  node.update();
  return node;
}

/** The node that shows a message, if one does. */
const nodes = new WeakMap();

function edit(owner, message, node) {
  if (running?.chat === owner) return;
  const area = make("textarea", { "aria-label": "Edit the message", rows: Math.min(12, message.content.split("\n").length + 1) });
  area.value = message.content;
  const cancel = () => { node.replaceWith(messageNode(owner, message)); input.focus(); };
  const send = () => {
    if (!area.value.trim()) return;
    if (running) return say("Another answer is on its way; wait for its end, or stop it.");
    owner.messages.length = owner.messages.indexOf(message);
    submit(owner, area.value);
  };
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.stopPropagation(); cancel(); }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  });
  const buttons = make("div", { class: "row end" },
    make("button", { type: "button", onclick: cancel }, "Cancel"),
    make("button", { type: "button", class: "strong", onclick: send }, "Send"));
  node.classList.add("editing");
  node.replaceChildren(area, buttons);
  area.focus();
}

function retry(owner, message) {
  if (running) return;
  owner.messages.length = owner.messages.indexOf(message);
  answer(owner);
}

function submit(owner, text) {
  owner.messages.push({ role: "user", content: text });
  if (!owner.title) owner.title = text.trim().split("\n")[0].slice(0, 60);
  answer(owner);
}

function request(owner) {
  const system = owner.system.trim() ? [{ role: "system", content: owner.system }] : [];
  const messages = owner.messages.filter((m) => m.role === "user" || m.content)
    .map(({ role, content }) => ({ role, content }));
  const sampling = {};
  for (const { name } of SAMPLING) {
    const value = setting(name);
    if (value !== null && value !== "") sampling[name] = Number(value);
  }
  return { messages: [...system, ...messages], ...sampling };
}

async function answer(owner) {
  const stopper = new AbortController();
  const body = request(owner);
  const message = { role: "assistant", content: "" };
  owner.messages.push(message);
  running = { chat: owner, message, stop: () => stopper.abort() };
  if (chat === owner) show();
  keep(owner);
  say("The answer is on its way.");
  const began = performance.now();
  let first = null;
  const outcome = { end: null, usage: null };
  try {
    Object.assign(outcome, await ask(body, stopper.signal, {
      piece({ text, reasoning }) {
        first ??= performance.now();
        message.note = "";
        message.content += text;
        if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
        draw(message);
      },
      wait(seconds, error) {
        message.note = `${error.message} Trying again in ${seconds} s …`;
        draw(message);
      },
    }));
    message.note = summary(outcome, began, first);
    if (outcome.end === "length") message.note += " · cut off: no more tokens were allowed or fit";
    say("The answer is complete.");
  } catch (error) {
    if (error.name === "AbortError") {
      message.note = "stopped";
      say("Stopped.");
    } else {
      message.note = "";
      message.error = error.message;
      say(error.message);
      if (error instanceof ApiError && error.status === 401) openSettings("key");
    }
  }
  running = null;
  nodes.get(message)?.update();
  showRunning();
  await keep(owner);
}

function summary({ usage }, began, first) {
  const now = performance.now();
  if (!usage || first === null) return "";
  const seconds = (now - first) / 1000;
  const rate = usage.completion_tokens > 1 && seconds > 0 ? ` · ${((usage.completion_tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
  return `${usage.completion_tokens} tokens${rate} · first after ${((first - began) / 1000).toFixed(2)} s`;
}

const toDraw = new Set();

/** Shows what has come of a message, once a frame at most. */
function draw(message) {
  if (!toDraw.size) requestAnimationFrame(() => {
    const follow = isAtEnd();
    for (const m of toDraw) nodes.get(m)?.update();
    toDraw.clear();
    if (follow) scrollToEnd();
  });
  toDraw.add(message);
}

function showRunning() {
  const here = running?.chat === chat;
  $("send").hidden = here;
  $("stop").hidden = !here;
  $("send").disabled = running !== null && !here;
}

const scroller = $("main");
const isAtEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
function scrollToEnd() { scroller.scrollTop = scroller.scrollHeight; }
scroller.addEventListener("scroll", () => { $("to-end").hidden = isAtEnd(); }, { passive: true });
$("to-end").addEventListener("click", () => { scrollToEnd(); input.focus(); });

// ── Writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────

$("compose").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = input.value;
  if (!text.trim() || running) return;
  input.value = "";
  submit(chat, text);
});
input.addEventListener("keydown", (event) => {
  // A phone's keyboard has no Shift+Enter.
  const phone = matchMedia("(pointer: coarse)").matches;
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !phone) {
    event.preventDefault();
    $("compose").requestSubmit();
  }
  if (event.key === "ArrowUp" && !input.value && !running) {
    const last = chat.messages.findLastIndex((m) => m.role === "user");
    if (last >= 0) { event.preventDefault(); edit(chat, chat.messages[last], log.children[last]); }
  }
});
$("stop").addEventListener("click", () => { running?.stop(); input.focus(); });
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (document.body.classList.contains("side-open")) closeSide();
  else running?.stop();
});

// ── Side, settings, colours ──────────────────────────────────────────────────────────────────────────────────────────

function openSide() {
  document.body.classList.add("side-open");
  $("shade").hidden = false;
  $("side-open").setAttribute("aria-expanded", "true");
  $("new").focus();
}

function closeSide() {
  if (!document.body.classList.contains("side-open")) return;
  document.body.classList.remove("side-open");
  $("shade").hidden = true;
  $("side-open").setAttribute("aria-expanded", "false");
  $("side-open").focus();
}

$("side-open").addEventListener("click", openSide);
$("side-close").addEventListener("click", closeSide);
$("shade").addEventListener("click", closeSide);
$("new").addEventListener("click", () => pick(chat.messages.length ? newChat() : chat));

const SAMPLING = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05 },
  { name: "top_k", label: "Top-k", min: 0, step: 1 },
  { name: "top_p", label: "Top-p", min: 0, max: 1, step: 0.01 },
  { name: "min_p", label: "Min-p", min: 0, max: 1, step: 0.01 },
  { name: "repeat_penalty", label: "Repeat penalty", min: 0.5, max: 2, step: 0.05 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1 },
  { name: "max_tokens", label: "Most tokens", min: 1, step: 1 },
  { name: "seed", label: "Seed", step: 1 },
];

for (const { name, label, ...limits } of SAMPLING) {
  const field = make("input", { id: `s-${name}`, type: "number", inputmode: "decimal", ...limits });
  field.value = setting(name) ?? "";
  field.addEventListener("change", () => {
    if (!field.reportValidity()) return;
    setting(name, field.value === "" ? null : field.value);
  });
  $("sampling").append(make("div", {}, make("label", { for: field.id }, label), field));
}

function openSettings(focus) {
  $("key").value = key.get();
  $("keep-key").checked = key.isKept();
  if (!$("settings").open) $("settings").showModal();
  if (focus) $(focus).focus();
}

$("open-settings").addEventListener("click", () => openSettings());
$("system").addEventListener("change", () => {
  chat.system = $("system").value;
  if (chat.messages.length) keep(chat);
});
for (const id of ["key", "keep-key"]) {
  $(id).addEventListener("change", () => {
    key.set($("key").value.trim(), $("keep-key").checked);
    greet();
  });
}
// The event comes after the dialog has gone: whoever writes elsewhere by then goes on there.
$("settings").addEventListener("close", () => { if (!document.activeElement?.matches("textarea")) input.focus(); });
$("export-all").addEventListener("click", () => {
  download("zinc-chats.json", JSON.stringify(chats, null, 1), "application/json");
});
$("delete-all").addEventListener("click", async () => {
  if (!await askFor({ title: "Delete all chats?", text: "They are kept nowhere else.", yes: "Delete all" })) return;
  for (const c of chats) deleted.add(c);
  running?.stop();
  chats = [];
  await dropAllChats();
  pick(newChat());
});
$("ask-no").addEventListener("click", () => $("ask").close());

const THEMES = [["", "◐", "as the system"], ["light", "☀\ufe0e", "light"], ["dark", "☾", "dark"]];

function showTheme(theme) {
  const [value, sign, words] = THEMES.find(([name]) => name === theme) ?? THEMES[0];
  if (value) document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
  $("theme").textContent = sign;
  $("theme").setAttribute("aria-label", `Colours: ${words}`);
  $("theme").title = `Colours: ${words}`;
}

$("theme").addEventListener("click", () => {
  const at = THEMES.findIndex(([name]) => name === (setting("theme") ?? ""));
  const next = THEMES[(at + 1) % THEMES.length][0];
  setting("theme", next || null);
  showTheme(next);
});

// ── The server ───────────────────────────────────────────────────────────────────────────────────────────────────────

let greeting = null;

/** Asks for the model's name until the server has one. */
async function greet() {
  clearTimeout(greeting);
  const name = $("model");
  try {
    name.textContent = (await models())[0]?.id ?? "no model";
    look();
  } catch (error) {
    const needsKey = error.status === 401;
    name.textContent = needsKey ? "API key needed" : error.status === 503 ? "loading …" : "no connection";
    $("live").textContent = error.message;
    if (needsKey) openSettings("key");
    else greeting = setTimeout(greet, 2000);
  }
}

let looking = null;
let before = null;

/** The live line: looked at every second while an answer comes, rarely otherwise, never while nobody sees it. */
async function look() {
  clearTimeout(looking);
  if (!document.hidden) {
    const now = await metrics();
    if (now) showLive(now);
    else if (before) { before = null; greet(); return; }
  }
  looking = setTimeout(look, running ? 1000 : 4000);
}

function showLive(now) {
  const at = performance.now();
  const tokens = now["vllm:generation_tokens_total"] ?? 0;
  const rate = before ? Math.max(0, tokens - before.tokens) / ((at - before.at) / 1000) : 0;
  before = { tokens, at };
  const parts = [
    `${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`,
    `${now["vllm:num_requests_running"] ?? 0} running`,
    `${now["vllm:num_requests_waiting"] ?? 0} waiting`,
    `KV ${(100 * (now["vllm:kv_cache_usage_perc"] ?? 0)).toFixed(0)} %`,
  ];
  $("live").textContent = parts.join(" · ");
}

document.addEventListener("visibilitychange", () => { if (!document.hidden && before) look(); });

async function begin() {
  showTheme(setting("theme") ?? "");
  try {
    chats = await allChats();
  } catch (error) {
    say(`Kept chats cannot be read: ${error?.message ?? error}`);
  }
  pick(chats.find((c) => c.id === setting("chat")) ?? newChat());
  greet();
}

begin();
