// Which lines of events and logs are shown: those of a level, with a text.

import { html } from "./html.js";

export const LEVELS = ["everything", "warnings", "errors"];

const RANKS = { debug: 0, info: 0, warning: 1, error: 2, critical: 2 };

export function Sift({ sift, onSift, what, levels = LEVELS }) {
  const change = (field) => (event) => onSift({ ...sift, [field]: event.target.value });
  return html`
    <div class="sift">
      <label>Show
        <select aria-label=${`Level of ${what}`} value=${sift.level} onChange=${change("level")}>
          ${levels.map((each) => html`<option value=${each}>${each}</option>`)}
        </select>
      </label>
      <label>with
        <input type="search" aria-label=${`Filter of ${what}`} placeholder="any text" value=${sift.text} onInput=${change("text")} />
      </label>
    </div>
  `;
}

export const nothingSifted = { level: LEVELS[0], text: "" };

// A line of no level, as a worker prints, is shown at each.
export function passes(sift, level, text) {
  const rank = RANKS[level] ?? RANKS.critical;
  return rank >= LEVELS.indexOf(sift.level) && text.toLowerCase().includes(sift.text.trim().toLowerCase());
}
