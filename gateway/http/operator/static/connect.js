// Lines to copy that connect agents and editors with a model.

import { askJson, modelPath } from "./api.js";
import { Copy } from "./copy.js";
import { Failure } from "./failure.js";
import { count } from "./format.js";
import { html, useEffect, useState } from "./html.js";
import { askableIds } from "./upstreams.js";

export function Connect({ live, argument }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const ids = askableIds(live.status);
  const id = argument || ids[0];

  useEffect(() => {
    const over = new AbortController();
    const look = async () => {
      setFound(null);
      setError(null);
      try {
        const url = encodeURIComponent(location.origin);
        setFound(await askJson(`${modelPath(id, "clients")}?url=${url}`, { signal: over.signal }));
      } catch (failure) {
        if (failure.name !== "AbortError") setError(failure);
      }
    };
    if (id) look();
    return () => over.abort();
  }, [id]);

  if (!id) return html`<p class="empty">There is no model to connect with.</p>`;
  return html`
    <label class="choice">
      Model
      <select value=${id} onChange=${(event) => (location.hash = `connect/${event.target.value}`)}>
        ${ids.map((each) => html`<option value=${each}>${each}</option>`)}
      </select>
    </label>
    <${Failure} error=${error} />
    ${found && html`<p class="sum">The context is ${count(found.context_tokens)} tokens.</p>`}
    ${found?.clients.map((each) => html`<${Client} key=${each.client} lines=${each} />`)}
  `;
}

function Client({ lines }) {
  const heading = `client-${lines.client}`;
  return html`
    <section aria-labelledby=${heading}>
      <h2 id=${heading}>${lines.title[0].toUpperCase()}${lines.title.slice(1)}</h2>
      <p>Copy this ${lines.place}:</p>
      <pre tabindex="0" role="region" aria-label=${`Lines for ${lines.title}`}>${lines.text}</pre>
      <div class="actions">
        <${Copy} text=${lines.text} what=${`the lines for ${lines.title}`} />
      </div>
      ${lines.remark && html`<p class="notice">${lines.remark}</p>`}
    </section>
  `;
}
