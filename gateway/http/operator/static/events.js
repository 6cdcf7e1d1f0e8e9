// What happened, the newest first.

import { clock } from "./format.js";
import { html, useState } from "./html.js";
import { LEVELS, nothingSifted, passes, Sift } from "./sift.js";
import { isSerious, sentence } from "./told.js";

const FIRST = 12;

export function Events({ events }) {
  const [all, setAll] = useState(false);
  const [sift, setSift] = useState(nothingSifted);
  const found = events
    .map((each) => ({ each, text: sentence(each), level: isSerious(each) ? "warning" : "info" }))
    .filter(({ text, level }) => passes(sift, level, text))
    .toReversed();
  return html`
    <section aria-labelledby="events">
      <h2 id="events">Events</h2>
      ${events.length > 0 && html`<${Sift} sift=${sift} onSift=${setSift} what="events" levels=${LEVELS.slice(0, 2)} />`}
      ${found.length === 0 && html`<p class="empty">${events.length ? "No event is like that." : "Nothing has happened yet."}</p>`}
      <ol class="events">
        ${(all ? found : found.slice(0, FIRST)).map(
          ({ each, text, level }) => html`
            <li key=${each.id} class=${level === "warning" ? "bad" : ""}>
              <time datetime=${new Date(each.at * 1000).toISOString()}>${clock(each.at)}</time>
              <span class="told">${text}</span>
            </li>
          `,
        )}
      </ol>
      ${found.length > FIRST &&
      html`<button class="quiet" aria-expanded=${all} onClick=${() => setAll(!all)}>
        ${all ? `Show the last ${FIRST}` : `Show all ${found.length}`}
      </button>`}
    </section>
  `;
}
