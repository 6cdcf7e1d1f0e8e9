// Tokens a second of the last two minutes.

import { html } from "./html.js";

const WIDTH = 120;
const HEIGHT = 28;

export function Sparkline({ rates }) {
  const highest = Math.max(1, ...rates);
  const points = rates.map((rate, at) => {
    const x = WIDTH - rates.length + 1 + at;
    return `${x},${(HEIGHT - 1 - (rate / highest) * (HEIGHT - 2)).toFixed(1)}`;
  });
  const now = Math.round(rates.at(-1) ?? 0);
  return html`
    <figure class="sparkline">
      <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img"
        aria-label=${`${now} tokens a second now, ${Math.round(Math.max(0, ...rates))} at most lately`}>
        <polyline points=${points.join(" ")} />
      </svg>
      <figcaption aria-hidden="true">${now} tokens/s</figcaption>
    </figure>
  `;
}
