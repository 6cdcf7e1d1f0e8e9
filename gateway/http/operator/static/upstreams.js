// Other servers, and their models: nothing of them is in this machine's memory.

import { counted } from "./format.js";
import { html } from "./html.js";

// The ids of all models that can be asked here, those of this gateway first.
export const askableIds = ({ models, upstreams }) => [
  ...models.map((each) => each.id),
  ...upstreams.flatMap(({ name, models: theirs }) => theirs.map((each) => `${name}/${each.id}`)),
];

export function Upstreams({ upstreams }) {
  if (upstreams.length === 0) return null;
  return html`
    <section aria-labelledby="upstreams">
      <h2 id="upstreams">Upstreams</h2>
      ${upstreams.map(
        (each) => html`
          <h3>${each.name}</h3>
          <p class="sum">${summary(each)}</p>
          <ul class="resting">
            ${each.models.map((model) => html`<${Offer} upstream=${each.name} model=${model} />`)}
          </ul>
        `,
      )}
    </section>
  `;
}

function summary({ url, bulkhead, models, active_requests, reason }) {
  const kind = bulkhead ? ", another Bulkhead" : "";
  const sums = `${counted(models.length, "model")}, ${counted(active_requests, "request")} from here`;
  return `${url}${kind}: ${sums}${reason ? `. ${reason}` : ""}`;
}

function Offer({ upstream, model }) {
  return html`
    <li data-model=${`${upstream}/${model.id}`}>
      <span class="name">${`${upstream}/${model.id}`}</span>
      <span class=${`state ${model.state}`}>${model.state}</span>
      ${model.reason && html`<span class="reason">${model.reason}</span>`}
    </li>
  `;
}
