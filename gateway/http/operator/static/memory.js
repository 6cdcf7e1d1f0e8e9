// The memory as one bar: above what was promised, below what is held, and the budget across both.

import { bytes } from "./format.js";
import { html, useState } from "./html.js";
import { held, promised, total } from "./memory_shares.js";
import { Term } from "./terms.js";

export function Memory({ status, colours }) {
  const whole = total(status);
  const { budget_bytes: budget, pressure } = status.memory;
  const [byModel, setByModel] = useState(true);
  const tracks = [promised(status, byModel, colours), held(status, byModel, colours)];
  const width = (part) => `${Math.min(100, (100 * part) / whole)}%`;
  return html`
    <section aria-labelledby="memory">
      <h2 id="memory">Memory</h2>
      <p class="sum">
        <${Term} name="Budget" /> ${bytes(budget)} of ${bytes(whole)}
        ${status.memory.card_total_bytes !== null && " on the card"}
        ${pressure && pressure !== "normal" && html` · <strong class="bad">pressure: ${pressure}</strong>`}
        <button class="quiet" onClick=${() => setByModel(!byModel)}>${byModel ? "Show kinds" : "Show models"}</button>
      </p>
      <div class="bar" aria-hidden="true">
        ${tracks.map(
          (parts) => html`
            <div class="track">
              ${parts.map(
                (each) =>
                  html`<span class=${`part ${each.kind}`} style=${{ width: width(each.bytes) }}
                    title=${`${each.label}: ${bytes(each.bytes)}`}></span>`,
              )}
            </div>
          `,
        )}
        ${budget !== null && html`<span class="budget" style=${{ left: width(budget) }} title="Budget"></span>`}
      </div>
      ${[["Promised", tracks[0]], ["Held", tracks[1]]].map(
        ([title, parts]) => html`
          <dl class="legend" aria-label=${title}>
            <div class="title"><dt><${Term} name=${title} /></dt></div>
            ${parts.map(
              (each) => html`
                <div>
                  <dt><span class=${`swatch ${each.kind}`}></span><${Term} name=${each.label} /></dt>
                  <dd>${bytes(each.bytes)}</dd>
                </div>
              `,
            )}
          </dl>
        `,
      )}
    </section>
  `;
}
