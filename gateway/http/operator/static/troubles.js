// What is wrong, before anything else: a line each, which opens to its whole text.

import { bytes } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";

export function Troubles({ status }) {
  const found = [...troubles(status)];
  if (found.length === 0) return null;
  return html`
    <ul class="troubles" aria-label="What is wrong" tabindex="-1">
      ${found.map(([who, what]) => html`<${Trouble} key=${who + what} who=${who} what=${what} />`)}
    </ul>
  `;
}

// A line that is whole has nothing to open.
function Trouble({ who, what }) {
  const item = useRef(null);
  const [cut, setCut] = useState(false);
  useEffect(() => {
    const shown = item.current;
    const resized = new ResizeObserver(() => {
      const line = shown.querySelector(".wrong");
      if (!line.closest("[open]")) setCut(line.scrollWidth > line.clientWidth);
    });
    resized.observe(shown);
    return () => resized.disconnect();
  }, []);
  const text = html`${who && html`<strong>${who}</strong> `}${what}`;
  return html`
    <li ref=${item}>
      ${cut ? html`<details><summary class="wrong">${text}</summary></details>` : html`<p class="wrong">${text}</p>`}
    </li>
  `;
}

export function toTroubles(event) {
  event.preventDefault();
  const list = document.querySelector(".troubles");
  list.scrollIntoView({ block: "center" });
  list.focus({ preventScroll: true });
}

// A model stands here once, however much is wrong with it.
function* troubles({ reason, models, hosts, upstreams, memory }) {
  if (reason) yield ["The gateway:", reason];
  for (const { id, failure, repeated_deaths: repeated } of models) {
    if (failure) yield ["", failure];
    else if (repeated.length > 0) yield [`${id}:`, told(repeated[0])];
  }
  for (const { name, reachable, reason: why } of hosts) if (!reachable) yield [`${name}:`, why];
  for (const { name, reason: why } of upstreams) if (why) yield [`${name}:`, why];
  if (memory.stranded_bytes) yield ["Memory:", `${bytes(memory.stranded_bytes)} did not come back from workers that ended.`];
  if (memory.pressure && memory.pressure !== "normal") yield ["Memory:", `the system is short of it (${memory.pressure}).`];
}

export const told = ({ deaths, error, remedy }) => `${deaths} of its workers have died of one error: ${error}. ${remedy}`;
