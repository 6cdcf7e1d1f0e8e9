// What runs, what waits, and what has finished.

import { condition } from "./condition.js";
import { Finished } from "./finished.js";
import { count, duration } from "./format.js";
import { html } from "./html.js";

// What it does, or what it waits for.
function state({ state: how, place }, model) {
  if (how === "running") return model?.reason ? `runs; ${model.reason}` : "runs";
  const waits = `${how === "parked" ? "parked" : "waits"}, number ${place} in the queue`;
  if (!model || model.state === "ready") return waits;
  return `${waits}: ${condition(model)}`;
}

// `finished` counts the requests that have finished.
export function Requests({ requests, models, finished }) {
  const byId = new Map(models.map((each) => [each.id, each]));
  return html`
    <section aria-labelledby="requests">
      <h2 id="requests">Requests</h2>
      ${requests.length === 0
        ? html`<p class="empty">Nothing runs, and nobody waits.</p>`
        : html`
            <div class="scroll" tabindex="0" role="region" aria-labelledby="requests">
              <table>
                <thead>
                  <tr>
                    <th scope="col">Model</th>
                    <th scope="col">State</th>
                    <th scope="col">Age</th>
                    <th scope="col">Prompt</th>
                    <th scope="col">Answer</th>
                    <th scope="col">Key</th>
                    <th scope="col">Request</th>
                  </tr>
                </thead>
                <tbody>
                  ${requests.map(
                    (each) => html`
                      <tr class=${each.state}>
                        <th scope="row">${each.model}</th>
                        <td class="why">${state(each, byId.get(each.model))}</td>
                        <td class="number">${duration(each.age_s)}</td>
                        <td class="number">${each.prompt_tokens ? count(each.prompt_tokens) : "–"}</td>
                        <td class="number">${count(each.delivered_tokens)}</td>
                        <td>${each.key ?? "–"}</td>
                        <td><code>${each.id}</code></td>
                      </tr>
                    `,
                  )}
                </tbody>
              </table>
            </div>
          `}
      <${Finished} finished=${finished} />
    </section>
  `;
}
