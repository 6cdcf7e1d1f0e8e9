// What runs and what waits.

import { count, duration } from "./format.js";
import { html } from "./html.js";

export function Requests({ requests }) {
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
                    <th scope="col">Place</th>
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
                        <td>${each.state === "running" ? "runs" : `${each.place}${each.state === "parked" ? ", parked" : ""}`}</td>
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
    </section>
  `;
}
