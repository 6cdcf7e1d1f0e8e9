// Models that the hub has: found by words, each with its size and whether it fits here.

import { askJson } from "./api.js";
import { Failure } from "./failure.js";
import { bytes, count } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";

const PATH = "/admin/v1/search";
const FITS = {
  now: "fits now",
  "after unloading": "fits after unloading others",
  never: "doesn't fit",
};

// `empty`: the gateway has no model. `onPull` is called with the name of a repository.
export function Search({ empty, onPull }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const input = useRef(null);
  const latest = useRef(null);

  const search = async (words) => {
    latest.current?.abort();
    const attempt = new AbortController();
    latest.current = attempt;
    setBusy(true);
    setError(null);
    try {
      setFound(await askJson(`${PATH}?q=${encodeURIComponent(words)}`, { signal: attempt.signal }));
    } catch (failure) {
      if (attempt.signal.aborted) return;
      setError(failure);
      // Without the hub there is still the list of the package.
      if (failure.code === "hub_unavailable") setFound(await askJson(`${PATH}?q=`));
    } finally {
      if (latest.current === attempt) setBusy(false);
    }
  };
  useEffect(() => {
    // Without words: the well-known models, for which the gateway asks nobody.
    if (empty) search("");
    return () => latest.current?.abort();
  }, []);

  const submit = (event) => {
    event.preventDefault();
    search(input.current.value.trim());
  };
  return html`
    <section aria-labelledby="search">
      <h2 id="search">Find a model</h2>
      <form class="line" role="search" onSubmit=${submit}>
        <label>
          Words of its name
          <input ref=${input} type="search" maxlength="200" placeholder="qwen3 4b" spellcheck=${false} autocapitalize="off" />
        </label>
        <button class="primary" disabled=${busy}>Search</button>
      </form>
      <${Failure} error=${error} onClose=${() => setError(null)} />
      <p class="sum" role="status">${busy ? "The hub is asked…" : found && heading(found)}</p>
      <ul class="resting found">
        ${found?.results.map((each) => html`<${Result} key=${each.repository} found=${each} onPull=${onPull} />`)}
      </ul>
    </section>
  `;
}

function Result({ found, onPull }) {
  const { repository, fits } = found;
  const facts = [
    bytes(found.weight_bytes),
    found.downloads !== null && `${count(found.downloads)} downloads a month`,
    found.changed_at !== null && `changed ${new Date(found.changed_at * 1000).toLocaleDateString()}`,
    !found.mlx && "not made for MLX",
    found.embeds && "embeddings",
    found.gated && "gated",
    found.problem,
  ];
  return html`
    <li data-repository=${repository}>
      <span class="name">${repository}</span>
      ${fits && html`<span class="tag">${FITS[fits]}</span>`}
      <span class="reason">${facts.filter(Boolean).join(" · ")}</span>
      <div class="actions">
        ${found.served_as === null
          ? html`<button disabled=${found.problem !== null} onClick=${() => onPull(repository)} aria-label=${`Pull ${repository}`}>Pull</button>`
          : html`<${ChatLink} model=${found.served_as} />`}
      </div>
    </li>
  `;
}

// The first message loads the model.
export function ChatLink({ model }) {
  return html`<a class="button" href=${`#playground/${model}`} aria-label=${`Chat with ${model}`}>Chat</a>`;
}

function heading(found) {
  if (found.dated !== null) {
    return `Well-known models, by a list of ${found.dated}. ${bytes(found.possible_bytes)} of memory can be had for one.`;
  }
  if (found.results.length === 0) return `The hub has no model for “${found.query}”: try fewer words.`;
  return `${found.results.length} models for “${found.query}”. ${bytes(found.free_bytes)} of memory are free now, ${bytes(found.possible_bytes)} after unloading.`;
}
