// The one connection that tells what the gateway does, kept for as long as the page is open.

import { ApiError, ask } from "./api.js";
import { messages } from "./server_sent_events.js";

const RECENT = 100;
const MOST_EVENTS = 300;
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 4000;
// A snapshot comes every second: without one for so long the connection is a dead one.
const SILENCE_MS = 8000;

// What the page shows. `connection`: connecting, live, lost, refused. `seenAt`: the Unix time of the
// last snapshot, in seconds. `reads`: the key that is shown
// only reads.
export const nothingYet = {
  connection: "connecting",
  status: null,
  seenAt: null,
  requests: [],
  finished: 0,
  events: [],
  reads: false,
};

// Calls `tell` with each new state, until the function that it returns is called.
export function watch(tell) {
  const over = new AbortController();
  let state = nothingYet;
  let lastId = null;
  const update = (change) => {
    state = { ...state, ...change };
    if (!over.signal.aborted) tell(state);
  };

  function take(message) {
    if (message.data === null) return;
    const data = JSON.parse(message.data);
    if (message.event === "snapshot") {
      update({ connection: "live", seenAt: Date.now() / 1000, ...data });
    } else {
      lastId = message.id;
      update({ events: [...state.events.slice(1 - MOST_EVENTS), data] });
    }
  }

  async function follow(onMessage) {
    const attempt = new AbortController();
    const end = () => attempt.abort();
    const endHidden = () => document.hidden && end();
    over.signal.addEventListener("abort", end);
    document.addEventListener("visibilitychange", endHidden);
    let silence = setTimeout(end, SILENCE_MS);
    try {
      const response = await ask(`/admin/v1/live?recent=${RECENT}`, {
        headers: lastId === null ? {} : { "last-event-id": lastId },
        signal: attempt.signal,
      });
      for await (const message of messages(response)) {
        clearTimeout(silence);
        silence = setTimeout(end, SILENCE_MS);
        onMessage(message);
      }
    } finally {
      clearTimeout(silence);
      over.signal.removeEventListener("abort", end);
      document.removeEventListener("visibilitychange", endHidden);
    }
  }

  async function run() {
    let pause = FIRST_PAUSE_MS;
    while (!over.signal.aborted) {
      await shown();
      try {
        await follow((message) => {
          pause = FIRST_PAUSE_MS;
          take(message);
        });
      } catch (error) {
        if (error instanceof ApiError && error.wantsKey) {
          update({ connection: "refused", refusal: error });
          return;
        }
      }
      if (over.signal.aborted) return;
      if (document.hidden) continue;
      update({ connection: state.status ? "lost" : "connecting" });
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
    }
  }

  run();
  return () => over.abort();
}

// Browsers have six connections to a server, for all tabs together: one that nobody sees needs none.
function shown() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}
