// Chats in the browser's own database; settings in its local storage. Nothing leaves the browser.
//
//   chat: { id, title, changed, system, messages: [{ role, content, reasoning?, note?, error? }] }

const NAME = "zinc";
const CHATS = "chats";

let opened;

function open() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(CHATS, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

// Where there is no database (some private windows), chats live as long as the page.
const memory = new Map();

async function transact(mode, act, instead) {
  let database;
  try {
    database = await open();
  } catch {
    return instead();
  }
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(CHATS, mode);
    const request = act(transaction.objectStore(CHATS));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

/** All chats, the one changed last first. */
export async function allChats() {
  const chats = await transact("readonly", (s) => s.getAll(), () => [...memory.values()]);
  return chats.sort((a, b) => b.changed - a.changed);
}

export function keepChat(chat) {
  return transact("readwrite", (s) => s.put(structuredClone(chat)), () => memory.set(chat.id, structuredClone(chat)));
}

export function dropChat(id) {
  return transact("readwrite", (s) => s.delete(id), () => memory.delete(id));
}

export function dropAllChats() {
  return transact("readwrite", (s) => s.clear(), () => memory.clear());
}

function text(storage, name, value) {
  try {
    if (value === undefined) return storage.getItem(`zinc.${name}`);
    if (value === null) storage.removeItem(`zinc.${name}`);
    else storage.setItem(`zinc.${name}`, value);
  } catch {
    // Storage is closed or full: the setting lasts as long as the page.
  }
  return value ?? null;
}

/** Reads a setting, or sets it; `null` removes it. */
export const setting = (name, value) => text(localStorage, name, value);

/** The API key: for this tab, or for this browser if that was wished for. */
export const key = {
  get: () => text(sessionStorage, "key") ?? text(localStorage, "key") ?? "",
  isKept: () => text(localStorage, "key") !== null,
  set(value, keep) {
    text(sessionStorage, "key", value && !keep ? value : null);
    text(localStorage, "key", value && keep ? value : null);
  },
};
