// Markdown to DOM nodes.
//
//   text ─► blocks (source, kind) ─► nodes, kept where a block's source is as it was
//
// Nothing here makes HTML out of text: every piece becomes a text node or an element from the few made below, and links
// go to http, https and mailto alone. So whatever a model writes stays text.

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const TABLE_LINE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** An element with attributes and children; children that are texts become text nodes. */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

/** The blocks of a text: `{kind, source, …}`. */
export function blocks(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) { at += 1; continue; }
    const block = blockAt(lines, at);
    block.source = lines.slice(at, block.end).join("\n");
    found.push(block);
    at = block.end;
  }
  return found;
}

function blockAt(lines, at) {
  const line = lines[at];
  const fence = line.match(FENCE);
  if (fence) return fenceAt(lines, at, fence);
  const heading = line.match(HEADING);
  if (heading) return { kind: "heading", level: heading[1].length, text: heading[2] ?? "", end: at + 1 };
  if (RULE.test(line)) return { kind: "rule", end: at + 1 };
  if (QUOTE.test(line)) return quoteAt(lines, at);
  if (ITEM.test(line)) return listAt(lines, at);
  if (line.includes("|") && TABLE_LINE.test(lines[at + 1] ?? "") && cells(line).length === cells(lines[at + 1]).length) {
    return tableAt(lines, at);
  }
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !begins(lines[end])) end += 1;
  return { kind: "text", text: lines.slice(at, end).join("\n"), end };
}

/** Does this line end a paragraph before it? */
function begins(line) {
  const item = line.match(ITEM);
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || (item && item[4]);
}

function fenceAt(lines, at, [, indent, mark, info]) {
  let end = at + 1;
  const body = [];
  const closes = (line) => {
    const m = line.match(/^ {0,3}(`{3,}|~{3,})\s*$/);
    return m && m[1][0] === mark[0] && m[1].length >= mark.length;
  };
  while (end < lines.length && !closes(lines[end])) {
    body.push(lines[end].startsWith(indent) ? lines[end].slice(indent.length) : lines[end]);
    end += 1;
  }
  const language = info.trim().split(/\s+/)[0] ?? "";
  return { kind: "code", language, text: body.join("\n"), end: Math.min(end + 1, lines.length) };
}

function quoteAt(lines, at) {
  const inner = [];
  let end = at;
  while (end < lines.length && lines[end].trim() && (QUOTE.test(lines[end]) || !begins(lines[end]))) {
    inner.push(lines[end].match(QUOTE)?.[1] ?? lines[end]);
    end += 1;
  }
  return { kind: "quote", text: inner.join("\n"), end };
}

function listAt(lines, at) {
  const first = lines[at].match(ITEM);
  const ordered = /\d/.test(first[2]);
  const base = first[1].length;
  const items = [];
  let end = at;
  let inside = 0;
  while (end < lines.length) {
    const line = lines[end];
    const item = line.match(ITEM);
    const indent = line.match(/^\s*/)[0].length;
    if (item && indent < base + 2 && indent >= base - 1 && /\d/.test(item[2]) === ordered && !RULE.test(line)) {
      inside = indent + item[2].length + Math.min(Math.max(item[3].length, 1), 4);
      items.push([item[4]]);
    } else if (!line.trim()) {
      const next = lines.slice(end + 1).find((l) => l.trim()) ?? "";
      const again = next.match(ITEM);
      const deeper = next.match(/^\s*/)[0].length >= Math.min(inside, base + 2) && next.trim();
      const sibling = again && /\d/.test(again[2]) === ordered && again[1].length >= base - 1;
      if (!deeper && !sibling) break;
      items.at(-1).push("");
    } else if (indent >= base + 2 || !(begins(line) || !lines[end - 1].trim())) {
      items.at(-1).push(line.slice(Math.min(indent, inside)));
    } else break;
    end += 1;
  }
  const start = ordered ? Number.parseInt(first[2], 10) : null;
  return { kind: "list", ordered, start, items: items.map((l) => l.join("\n").trimEnd()), end };
}

function cells(line) {
  const parts = [];
  let cell = "";
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  for (let i = 0; i < inner.length; i += 1) {
    if (inner[i] === "\\" && inner[i + 1] === "|") { cell += "|"; i += 1; }
    else if (inner[i] === "|") { parts.push(cell.trim()); cell = ""; }
    else cell += inner[i];
  }
  return [...parts, cell.trim()];
}

function tableAt(lines, at) {
  const align = cells(lines[at + 1]).map((c) => (/^:-+:$/.test(c) ? "center" : /-:$/.test(c) ? "right" : "left"));
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end += 1;
  return { kind: "table", head: cells(lines[at]), align, rows: lines.slice(at + 2, end).map(cells), end };
}

/** Depth of lists and quotes inside each other, beyond which text is shown as it is. */
const DEEPEST = 12;

function build(block, depth) {
  switch (block.kind) {
    case "heading": return make(`h${Math.min(block.level + 2, 6)}`, {}, ...inline(block.text));
    case "rule": return make("hr");
    case "code": return codeBlock(block.language, block.text);
    case "quote": return make("blockquote", {}, ...nested(block.text, depth));
    case "list": return make(block.ordered ? "ol" : "ul", { start: block.start === 1 ? null : block.start },
      ...block.items.map((item) => make("li", {}, ...itemNodes(item, depth))));
    case "table": return table(block);
    default: return make("p", {}, ...inline(block.text));
  }
}

function nested(text, depth) {
  if (depth >= DEEPEST) return [text];
  return blocks(text).map((block) => build(block, depth + 1));
}

/** An item of one paragraph has no paragraph around it. */
function itemNodes(text, depth) {
  const task = text.match(/^\[([ xX])\] +/);
  const rest = task ? text.slice(task[0].length) : text;
  const box = task ? [make("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": task[1] === " " ? "Open" : "Done" }), " "] : [];
  if (depth >= DEEPEST) return [...box, rest];
  const inner = blocks(rest);
  const nodes = inner.map((block, i) => (i === 0 && block.kind === "text" ? inline(block.text) : [build(block, depth + 1)]));
  return [...box, ...nodes.flat()];
}

function table({ head, align, rows }) {
  const row = (tag, list) => make("tr", {}, ...head.map((_, i) => make(tag, { class: align[i] }, ...inline(list[i] ?? ""))));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" },
    make("table", {}, make("thead", {}, row("th", head)), make("tbody", {}, ...rows.map((r) => row("td", r)))));
}

function codeBlock(language, text) {
  const copy = make("button", { type: "button", class: "small", "aria-label": "Copy the code" }, "Copy");
  copy.addEventListener("click", async () => {
    const done = await copyText(text);
    copy.textContent = done ? "Copied" : "Cannot copy";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  return make("figure", { class: "code" },
    make("figcaption", {}, make("span", {}, language || "text"), copy),
    make("pre", { tabindex: "0" }, make("code", {}, text)));
}

/** Copies a text; browsers give their clipboard to pages over https and of this machine only. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", { class: "sr" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** Where a link may lead; `null`: nowhere. */
function address(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(label, target) {
  const href = address(target);
  return href ? make("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...label) : make("span", {}, ...label);
}

// One alternative for each thing that can stand in a line; the first that matches at the earliest place wins.
const INLINE = new RegExp([
  /(?<escape>\\[!-/:-@[-`{-~])/,
  /(?<ticks>`+)(?<code>[^]*?[^`])\k<ticks>(?!`)/,
  /!?\[(?<label>(?:[^\][\\]|\\.|\[[^\][]*\])*)\]\(\s*<?(?<target>[^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/,
  /<(?<auto>(?:https?:\/\/|mailto:)[^\s<>]+)>/,
  /(?<url>https?:\/\/[^\s<>"`]+)/,
  /\*\*(?=\S)(?<strong>[^]*?\S)\*\*/,
  /(?<![\p{L}\p{N}_])__(?=\S)(?<strong2>[^]*?\S)__(?![\p{L}\p{N}_])/,
  /~~(?=\S)(?<del>[^]*?\S)~~/,
  /\*(?=[^\s*])(?<em>[^*]*[^\s*])\*(?!\*)/,
  /(?<![\p{L}\p{N}_])_(?=[^\s_])(?<em2>[^_]*[^\s_])_(?![\p{L}\p{N}_])/,
  /(?<hard>(?: {2,}|\\)\n)/,
].map((r) => r.source).join("|"), "u");

/** Longest line that is looked at for such things: the search is quadratic at worst. */
const LONGEST = 20000;

function inline(text, depth = 0) {
  const nodes = [];
  let rest = text;
  while (rest && depth < DEEPEST && text.length < LONGEST) {
    const found = rest.match(INLINE);
    if (!found) break;
    if (found.index) nodes.push(rest.slice(0, found.index));
    const [node, used] = piece(found, depth);
    nodes.push(node);
    rest = rest.slice(found.index + used);
  }
  if (rest) nodes.push(rest);
  return nodes;
}

function piece(found, depth) {
  const g = found.groups;
  const whole = found[0];
  const inner = (tag, text) => [make(tag, {}, ...inline(text, depth + 1)), whole.length];
  if (g.escape) return [g.escape[1], 2];
  if (g.code !== undefined) {
    const code = g.code.replace(/\n/g, " ");
    return [make("code", {}, /^ .*[^ ].* $/.test(code) ? code.slice(1, -1) : code), whole.length];
  }
  if (g.label !== undefined) return [link(inline(g.label || g.target, depth + 1), g.target), whole.length];
  if (g.auto) return [link([g.auto], g.auto), whole.length];
  if (g.url) {
    let url = g.url.replace(/[.,;:!?'*_~\]]+$/, "");
    if (url.endsWith(")") && !url.includes("(")) url = url.slice(0, -1);
    return [link([url], url), url.length];
  }
  if (g.hard) return [make("br"), whole.length];
  if (g.del) return inner("del", g.del);
  const strong = g.strong ?? g.strong2;
  return strong ? inner("strong", strong) : inner("em", g.em ?? g.em2);
}

/** Shows `text` in `element`. Blocks that are as they were keep their nodes: of a growing text only the end is made anew,
 *  and what has been selected stays so. */
export function render(element, text) {
  const now = blocks(text);
  const before = element.shown ?? [];
  let same = 0;
  while (same < now.length && same < before.length && now[same].source === before[same].source
    && now[same].kind === before[same].kind) same += 1;
  for (const block of before.slice(same)) block.node.remove();
  for (let i = 0; i < same; i += 1) now[i].node = before[i].node;
  for (const block of now.slice(same)) {
    block.node = build(block, 0);
    element.append(block.node);
  }
  element.shown = now;
}
