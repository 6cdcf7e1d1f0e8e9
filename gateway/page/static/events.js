// What happened, the newest first.

import { clock } from "./format.js";
import { html, useState } from "./html.js";

const BAD = ["overgrown", "stranded", "refuse", "breaker", "hang", "escalation", "caution"];
const PLACED = ["id", "at", "event", "model"];

export function Events({ events }) {
  const [all, setAll] = useState(false);
  const newest = events.toReversed();
  const shown = all ? newest : newest.slice(0, 12);
  return html`
    <section aria-labelledby="events">
      <h2 id="events">Events</h2>
      ${events.length === 0 && html`<p class="empty">Nothing has happened yet.</p>`}
      <ol class="events">
        ${shown.map(
          (each) => html`
            <li key=${each.id} class=${BAD.includes(each.event) ? "bad" : ""}>
              <time datetime=${new Date(each.at * 1000).toISOString()}>${clock(each.at)}</time>
              <span class="kind">${each.event}</span>
              <span class="subject">${each.model ?? "gateway"}</span>
              <span class="fields">${fields(each)}</span>
            </li>
          `,
        )}
      </ol>
      ${events.length > 12 &&
      html`<button class="quiet" aria-expanded=${all} onClick=${() => setAll(!all)}>
        ${all ? "Show the last 12" : `Show all ${events.length}`}
      </button>`}
    </section>
  `;
}

function fields(event) {
  return Object.entries(event)
    .filter(([name, value]) => !PLACED.includes(name) && value !== null)
    .map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join("  ");
}
