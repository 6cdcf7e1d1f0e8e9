// What an operator can have done to a model, and what is asked before.

import { ask, modelPath } from "./api.js";
import { counted } from "./format.js";

// Browsers have six connections to a server, so a load is not waited for to its end.
const LOAD_MS = 5000;

const ENDS = {
  unload: {
    title: (id) => `Unload ${id}?`,
    text: (work) =>
      `${work} on the way. Answers get the time to drain; what is left then is kept, loads the model again and goes on.`,
    verb: "Unload",
  },
  restart: {
    title: (id) => `Restart ${id}?`,
    text: (work) =>
      `${work} on the way. Answers get the time to drain; what is left then goes on in the next worker.`,
    verb: "Restart",
  },
  kill: {
    title: (id) => `Kill the worker of ${id}?`,
    text: (work) => `${work} on the way. They pause now, and go on in the next worker.`,
    verb: "Kill",
  },
};

// Which of the verbs make sense in a model's state.
export function verbs(model) {
  const idle = ["unloaded", "held", "failed", "backoff"].includes(model.state);
  if (idle) return ["load"];
  return model.worker ? ["unload", "restart", "kill"] : ["unload"];
}

// The question before a verb, or null where it cuts no work.
export function question(verb, model) {
  const requests = model.active_requests + model.queue_depth;
  const loads = ["starting", "loading", "waiting"].includes(model.state);
  if (!(verb in ENDS) || (requests === 0 && !loads)) return null;
  const { title, text, verb: label } = ENDS[verb];
  const work = requests === 0 ? "It is being loaded, with nothing" : counted(requests, "request");
  return { title: title(model.id), text: text(work), verb: label };
}

// Throws ApiError, also of a load that fails soon. How else it ends is seen in the model's state.
export async function order(verb, model) {
  const options = verb === "load" ? { body: { wait: true }, signal: AbortSignal.timeout(LOAD_MS) } : { body: { wait: false } };
  try {
    await ask(modelPath(model.id, verb), { method: "POST", ...options });
  } catch (error) {
    if (error.name !== "TimeoutError") throw error;
  }
}
