// What went wrong with something that was asked for.

import { html } from "./html.js";

export function Failure({ error, onClose }) {
  if (!error) return null;
  return html`
    <p class="error" role="alert">
      ${error.message}
      ${onClose && html`<button class="quiet" aria-label="Dismiss" onClick=${onClose}>×</button>`}
    </p>
  `;
}
