// Conversations, in this browser and nowhere else. Pictures make them too large for localStorage.

const STORE = "conversations";

let opened = null;

function open() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("bulkhead", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

async function done(mode, act) {
  const database = await open();
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(STORE, mode);
    const request = act(transaction.objectStore(STORE));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

// The one that was changed last comes first.
export async function allConversations() {
  const found = await done("readonly", (store) => store.getAll());
  return found.sort((one, other) => other.changedAt - one.changedAt);
}

export const keepConversation = (conversation) => done("readwrite", (store) => store.put(conversation));

export const deleteConversation = (id) => done("readwrite", (store) => store.delete(id));

// `messages` are those of `chat.js`.
export function newConversation() {
  return { id: newId(), changedAt: Date.now(), messages: [] };
}

// `crypto.randomUUID` is for pages of HTTPS and loopback alone.
function newId() {
  const random = crypto.getRandomValues(new Uint32Array(2));
  return `${Date.now().toString(36)}-${random[0].toString(36)}${random[1].toString(36)}`;
}

export function titleOf(conversation) {
  const first = conversation.messages.find((each) => each.role === "user");
  const text = first?.text.trim().replaceAll(/\s+/g, " ");
  if (!first) return "New conversation";
  return text ? text.slice(0, 60) : "A picture";
}
