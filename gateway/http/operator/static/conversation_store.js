// Conversations, in this browser and nowhere else. Pictures make them too large for localStorage.
//
// Several tabs keep the same ones. What another tab has kept is never written over: each write has a
// version, and follows on the version that was read.

const STORE = "conversations";
const channel = new BroadcastChannel("bulkhead.conversations");
// Versions that this tab has written: what it shows has all of them.
const mine = new Set();

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

// One of them, or undefined.
export const storedConversation = (id) => done("readonly", (store) => store.get(id));

// The id under which it is kept: another one if another tab has changed it since it was read.
export async function keepConversation(conversation) {
  const version = newId();
  let { id } = conversation;
  await done("readwrite", (store) => {
    const read = store.get(id);
    read.onsuccess = () => {
      const stored = read.result?.version;
      if (stored !== undefined && stored !== conversation.version && !mine.has(stored)) id = newId();
      mine.add(version);
      store.put({ ...conversation, id, version });
    };
    return read;
  });
  channel.postMessage({ id, over: false });
  return id;
}

export async function deleteConversation(id) {
  await done("readwrite", (store) => store.delete(id));
  channel.postMessage({ id, over: false });
}

// Tells other tabs that nobody goes on with the answer that they may be watching.
export const leaveConversation = (id) => channel.postMessage({ id, over: true });

// Calls `tell` with { id, over } of each conversation that another tab has kept, deleted or left.
export function watchConversations(tell) {
  const onMessage = ({ data }) => tell(data);
  channel.addEventListener("message", onMessage);
  return () => channel.removeEventListener("message", onMessage);
}

// With an answer that nobody goes on with as one that was interrupted.
export function interrupted(conversation) {
  const messages = conversation.messages.map((each) =>
    each.state === "waiting" || each.state === "streaming" ? { ...each, state: "interrupted" } : each,
  );
  return { ...conversation, messages };
}

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
