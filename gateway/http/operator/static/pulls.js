// Models that come from the hub. Nothing is shown where the gateway can't pull.

import { ask, askJson } from "./api.js";
import { result } from "./check.js";
import { Failure } from "./failure.js";
import { bytes, duration } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { order } from "./orders.js";
import { ChatLink, Search } from "./search.js";

const PATH = "/admin/v1/pulls";
const BUSY_MS = 1000;
const IDLE_MS = 5000;
const OVER = ["done", "failed", "cancelled"];
// What another try as it is may heal.
const PASSING = ["unreachable", "wrong_bytes", "busy", "disk_full"];

// `models` are those that the gateway has.
export function Pulls({ models }) {
  const [pulls, setPulls] = useState(null);
  const [error, setError] = useState(null);
  const [turn, setTurn] = useState(0);
  const input = useRef(null);

  useEffect(() => {
    let timer = null;
    const over = new AbortController();
    const look = async () => {
      let pause = IDLE_MS;
      try {
        const found = (await askJson(PATH, { signal: over.signal })).pulls;
        setPulls(found);
        if (found.some((each) => !OVER.includes(each.state))) pause = BUSY_MS;
      } catch (failure) {
        if (failure.name === "AbortError" || failure.status === 404) return;
      }
      if (!over.signal.aborted) timer = setTimeout(look, pause);
    };
    look();
    return () => {
      over.abort();
      clearTimeout(timer);
    };
  }, [turn]);

  const act = async (path, options) => {
    setError(null);
    try {
      await ask(path, options);
      return true;
    } catch (failure) {
      setError(failure);
      return false;
    } finally {
      setTurn((before) => before + 1);
    }
  };
  const pull = (model, force = false) => act(PATH, { method: "POST", body: { model, force } });
  const cancel = (id) => act(`${PATH}/${encodeURIComponent(id)}`, { method: "DELETE" });
  const load = async (model) => {
    setError(null);
    await order("load", { id: model }).catch(setError);
  };
  const submit = async (event) => {
    event.preventDefault();
    if (await pull(input.current.value.trim())) input.current.value = "";
  };
  if (pulls === null) return null;
  return html`
    <${Search} empty=${models.length === 0} onPull=${pull} />
    <section aria-labelledby="pulls">
      <h2 id="pulls">Pulls</h2>
      <form class="line" onSubmit=${submit}>
        <label>
          Model on the hub
          <input ref=${input} required placeholder="owner/name or owner/name:4bit" spellcheck=${false} autocapitalize="off" />
        </label>
        <button class="primary">Pull</button>
      </form>
      <${Failure} error=${error} onClose=${() => setError(null)} />
      <ul class="pulls">
        ${pulls.toReversed().map((each) => html`<${Pull} key=${each.id} pull=${each} onPull=${pull} onCancel=${cancel} onLoad=${load} />`)}
      </ul>
    </section>
  `;
}

function Pull({ pull, onPull, onCancel, onLoad }) {
  const { model, state, done_bytes: done, total_bytes: all } = pull;
  return html`
    <li class="card">
      <div class="head"><h3>${pull.repository ?? model}</h3><span class=${`state ${state}`}>${state}</span></div>
      ${pull.reason && html`<p class="reason">${pull.reason}</p>`}
      ${all !== null &&
      html`
        <progress max=${all} value=${done ?? 0} aria-label=${`Progress of ${model}`}></progress>
        <p class="sum">
          ${bytes(done)} of ${bytes(all)}
          ${pull.bytes_per_s !== null && ` · ${bytes(pull.bytes_per_s)}/s`}
          ${pull.seconds_left !== null && ` · ${duration(pull.seconds_left)} left`}
        </p>
      `}
      ${pull.outlook && html`<p class="sum">${pull.outlook.sentence}</p>`}
      ${pull.check && html`<p class=${pull.check.faults ? "bad" : "sum"}>Its check: ${result(pull.check)}.</p>`}
      ${pull.offered_as && html`<p class="sum">It is served as <code>${pull.offered_as}</code>.</p>`}
      <div class="actions">
        ${pull.offered_as &&
        html`
          <button onClick=${() => onLoad(pull.offered_as)} aria-label=${`Load ${pull.offered_as} now`}>Load</button>
          <${ChatLink} model=${pull.offered_as} />
        `}
        ${!OVER.includes(state) && html`<button onClick=${() => onCancel(pull.id)} aria-label=${`Cancel ${model}`}>Cancel</button>`}
        ${(state === "cancelled" || PASSING.includes(pull.code)) &&
        html`<button onClick=${() => onPull(model)} aria-label=${`Resume ${model}`}>Resume</button>`}
        ${pull.code === "insufficient_memory" &&
        html`<button onClick=${() => onPull(model, true)} aria-label=${`Pull ${model} anyway`}>Pull anyway</button>`}
      </div>
    </li>
  `;
}
