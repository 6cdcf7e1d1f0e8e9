// Events as sentences.

import { bytes, count, counted, findingsText } from "./format.js";

const PLACED = ["id", "at", "event", "model", "time", "level", "logger"];
const SERIOUS = ["overgrown", "stranded", "refuse", "breaker", "hang", "escalation", "caution"];

const SENTENCES = {
  state: (e) => `${e.model} is ${e.after}: ${e.reason ?? e.cause}`,
  start: (e) => `Process ${e.pid} was started for ${e.model}`,
  adopt: (e) => `The spare worker, process ${e.pid}, is ${e.model}'s now`,
  ready: (e) => `${e.model} was loaded in ${e.load_s.toFixed(1)} s, by process ${e.pid}`,
  exit: (e) =>
    `The worker of ${e.model} ended${e.expected ? "" : " unexpectedly"}${e.reason ? `: ${e.reason}` : ""}`,
  admit: (e) => `${e.model} gets ${bytes(e.floor_bytes)}; ${bytes(e.free_bytes)} are free`,
  evict: (e) => `${e.model} gives way${e.for_model ? ` to ${e.for_model}` : ""}`,
  lend: (e) => `${e.model} may hold ${bytes(e.limit_bytes)} from now on`,
  recall: (e) => `${e.model} is to hold ${bytes(e.limit_bytes)} at most from now on`,
  overgrown: (e) => `${e.model} holds ${bytes(e.footprint_bytes)} and may hold ${bytes(e.limit_bytes)}: it is started anew`,
  context: (e) => `${e.model} can be given ${count(e.context_tokens)} tokens of context, not ${count(e.before_tokens)}`,
  refuse: (e) => `A request for ${e.model} was refused: ${e.code}`,
  park: (e) => `A request of ${e.model} waits for the next worker, after ${count(e.delivered_tokens)} tokens`,
  resume: (e) => `A request of ${e.model} goes on after ${count(e.delivered_tokens)} tokens`,
  breaker: (e) => `${e.model} ended unexpectedly ${count(e.deaths)} times: ${e.verdict}`,
  hang: (e) => `The worker of ${e.model} hangs: ${e.reason}`,
  escalation: (e) => `Process ${e.pid} did not end by ${e.outlived} within ${count(e.seconds)} s`,
  return: (e) => `${e.model} has ended, and ${bytes(e.missing_bytes)} of ${bytes(e.held_bytes)} did not come back`,
  stranded: (e) => `${bytes(e.stranded_bytes)} are stranded, and taken off the budget`,
  spare: (e) => `The spare worker: ${[e.change, e.reason ?? e.status].filter(Boolean).join(", ")}`,
  sweep: (e) => `Process ${e.pid}, left by an earlier gateway, ${e.ended ? "was ended" : "did not end"}`,
  disk: (e) => `The disk ${e.path} ${e.mounted ? "is there" : "isn't mounted"}`,
  pull: (e) => `The pull of ${e.name}: ${[e.change, e.reason].filter(Boolean).join(", ")}`,
  checked: (e) => `The check of ${e.model}: ${e.reason ?? findingsText(e)}`,
  removed: (e) => `${e.source} was removed: ${bytes(e.reclaimed_bytes)} are free`,
  reload: (e) => (e.mistakes ? `The configuration stays as it was: ${e.mistakes.join("; ")}` : `The configuration was read again${changed(e)}`),
  relieve: (e) => `${e.model} frees what it can: the machine is short of memory (${e.pressure})`,
  mailbox: (e) => `Stored answers: ${e.reason}`,
  caution: (e) => e.reason,
  upgrade: (e) => `The upgrade was refused: ${e.refused}`,
};

export const isSerious = (event) => SERIOUS.includes(event.event) || (event.event === "exit" && !event.expected);

export function sentence(event) {
  try {
    return SENTENCES[event.event](event);
  } catch {
    // Of a gateway that knows more of them, or tells less.
    return [event.event, event.model, rest(event)].filter(Boolean).join(" ");
  }
}

// The keys of a line that have no place of their own.
export function rest(fields) {
  return Object.entries(fields)
    .filter(([name, value]) => !PLACED.includes(name) && value !== null)
    .map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join(" ");
}

function changed({ added = [], removed = [], changed: models = {}, needs_restart: later = [] }) {
  const parts = [
    [added, "added"],
    [removed, "removed"],
    [Object.keys(models), "changed"],
    [later, "wait for a restart"],
  ].filter(([names]) => names.length > 0);
  return parts.length ? `: ${parts.map(([names, what]) => `${names.join(", ")} ${what}`).join("; ")}` : "";
}
