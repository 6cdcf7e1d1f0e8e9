// Each model: how it is, what it holds, and what can be done to it.

import { useCheck } from "./check.js";
import { Confirm } from "./confirm.js";
import { Failure } from "./failure.js";
import { bytes, count, counted, duration, rate, share } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { order, question, verbs } from "./orders.js";
import { Term } from "./terms.js";
import { deathSentence, toTroubles } from "./troubles.js";

const RESTING = ["unloaded", "held"];
const LABELS = { load: "Load", unload: "Unload", restart: "Restart", kill: "Kill" };

export function Models({ live }) {
  const [asked, setAsked] = useState(null);
  // By models' ids: why the last order failed.
  const [errors, setErrors] = useState({});

  const run = async (verb, model) => {
    const tell = (error) => setErrors((before) => ({ ...before, [model.id]: error }));
    tell(null);
    try {
      await order(verb, model);
    } catch (failure) {
      tell({ message: failure.message, close: () => tell(null) });
    }
  };
  const onVerb = (verb, model) => {
    const found = question(verb, model);
    if (found) setAsked({ ...found, act: () => run(verb, model) });
    else run(verb, model);
  };
  const { models } = live.status;
  const cards = models.filter((each) => !isResting(each)).toSorted((one, other) => rank(one) - rank(other));
  const resting = models.filter(isResting);
  return html`
    <section aria-labelledby="models">
      <h2 id="models">Models</h2>
      <${Changes} models=${models} />
      ${models.length === 0 && html`<p class="empty">No model is configured.</p>`}
      <ul class="cards">
        ${cards.map(
          (model) =>
            html`<${Model} key=${model.id} model=${model} error=${errors[model.id]} onVerb=${onVerb} />`,
        )}
      </ul>
      <ul class="resting">
        ${resting.map((model) => html`<${Resting} key=${model.id} model=${model} error=${errors[model.id]} onVerb=${onVerb} />`)}
      </ul>
      <${Confirm} question=${asked} onClose=${() => setAsked(null)} />
    </section>
  `;
}

// Nothing runs of it, nobody waits for it, and nothing is wrong with it.
function isResting(model) {
  return RESTING.includes(model.state) && !model.failure && model.queue_depth === 0;
}

// What is wrong first, then what is waited for.
function rank(model) {
  if (model.failure) return 0;
  return model.queue_depth > 0 || model.state !== "ready" ? 1 : 2;
}

function Resting({ model, error, onVerb }) {
  const check = useCheck(model);
  return html`
    <li data-model=${model.id}>
      <span class="name">${model.id}</span>
      <span class=${`state ${model.state}`}>${model.state}</span>
      ${model.command && html`<span class="tag">command</span>`}
      ${model.reason && html`<span class="reason">${model.reason}</span>`}
      <${Actions} model=${model} onVerb=${onVerb}>${check.button}<//>
      ${check.view}
      <${OrderFailure} model=${model} error=${error} />
    </li>
  `;
}

// What only models have that make tokens in a worker of ours.
const OF_TOKENS = ["Tokens/s", "Context", "Cached prompts", "Right guesses"];
const NOTHING = ["0", "0 B"];

function Model({ model, error, onVerb }) {
  const { worker } = model;
  const check = useCheck(model);
  const facts = [
    ["Tokens/s", worker ? rate(worker.tokens_per_s ?? 0) : "–"],
    ["Floor", bytes(model.floor_bytes)],
    ["Lent", bytes(model.lent_bytes)],
    ["Wanted", bytes(model.wanted_bytes)],
    ["Holds", bytes(worker?.footprint_bytes)],
    ["Context", count(model.context_tokens)],
    ["Cached prompts", bytes(model.prompt_cache.memory_bytes)],
    ["Right guesses", share(model.guesses.accept_rate)],
    ["Running", count(model.active_requests)],
    ["Waiting", count(model.queue_depth)],
    ["Restarts", count(model.restarts)],
  ];
  return html`
    <li class="card" data-model=${model.id}>
      <div class="head">
        <h3>${model.id}</h3>
        <span class=${`state ${model.state}`}>${model.state}</span>
        ${model.command && html`<span class="tag">command</span>`}
        ${model.pinned && html`<span class="tag">pinned</span>`}
      </div>
      ${model.failure &&
      html`<p class="bad">It can't be served: <a href="#overview" onClick=${toTroubles}>see above</a>.</p>`}
      ${model.reason && !model.failure && html`<p class="reason">${model.reason}</p>`}
      ${model.repeated_deaths.slice(model.failure ? 0 : 1).map((each) => html`<p class="reason">${deathSentence(each)}</p>`)}
      <dl class="facts">
        ${facts
          .filter(([, value]) => value !== "–" && (worker || !NOTHING.includes(value)))
          .filter(([name]) => !(model.command && OF_TOKENS.includes(name)))
          .map(([name, value]) => html`<div><dt><${Term} name=${name} /></dt><dd>${value}</dd></div>`)}
      </dl>
      ${worker &&
      html`<p class="worker">
        Worker ${worker.incarnation}, process ${worker.pid}${model.oldest_active_s !== null &&
        `, oldest request ${duration(model.oldest_active_s)}`}
      </p>`}
      ${model.last_exit && html`<${LastExit} exit=${model.last_exit} shown=${model.reason} />`}
      ${check.view}
      <${Actions} model=${model} onVerb=${onVerb}>${check.button}<//>
      <${OrderFailure} model=${model} error=${error} />
    </li>
  `;
}

// Its reason stands above already, if the model can't be served for it.
function OrderFailure({ model, error }) {
  const known = error && error.message === model.failure;
  return html`<${Failure} error=${known ? { message: "The load failed." } : error} onClose=${error?.close} />`;
}

function Actions({ model, onVerb, children }) {
  return html`
    <div class="actions">
      ${verbs(model).map(
        (verb) => html`
          <button class=${verb === "kill" ? "danger" : ""} aria-label=${`${LABELS[verb]} ${model.id}`}
            onClick=${() => onVerb(verb, model)}>
            ${LABELS[verb]}
          </button>
        `,
      )}
      ${children}
      <a class="button" href=${`#logs/${model.id}`} aria-label=${`Logs of ${model.id}`}>Logs</a>
    </div>
  `;
}

function LastExit({ exit, shown }) {
  return html`
    <details class="last-exit">
      <summary>Last end${exit.reason !== shown && `: ${exit.reason}`}</summary>
      <p>${new Date(exit.at * 1000).toLocaleString()}, ${exit.signal ?? `code ${exit.code}`}</p>
      ${exit.log_tail && html`<pre tabindex="0">${exit.log_tail}</pre>`}
    </details>
  `;
}

// For who doesn't see it: changes of states, and nothing that only counts.
function Changes({ models }) {
  const before = useRef(null);
  const [notice, setNotice] = useState("");
  const states = models.map((each) => `${each.id}: ${each.state}`).join("\n");
  useEffect(() => {
    const known = before.current;
    before.current = states.split("\n");
    if (known === null) return;
    const changed = before.current.filter((each) => each && !known.includes(each));
    if (changed.length > 0) setNotice(changed.join(", "));
  }, [states]);
  return html`<p class="unseen" role="status">${notice}</p>
    <p class="sum">${summary(models)}</p>`;
}

// "1 model of 5 ready, 2 with trouble, 1 waited for".
function summary(models) {
  const ready = models.filter((each) => each.state === "ready").length;
  const wrong = models.filter((each) => each.failure).length;
  const wanted = models.filter((each) => !each.failure && each.state !== "ready" && each.queue_depth > 0).length;
  const parts = [`${counted(ready, "model")} of ${models.length} ready`];
  if (wrong) parts.push(`${wrong} with trouble`);
  if (wanted) parts.push(`${wanted} waited for`);
  return parts.join(", ");
}
