// What is wrong, before anything else.

import { bytes } from "./format.js";
import { html } from "./html.js";

export function Troubles({ status }) {
  const found = [...troubles(status)];
  if (found.length === 0) return null;
  return html`
    <ul class="troubles" aria-label="What is wrong">
      ${found.map(([who, what]) => html`<li>${who && html`<strong>${who}</strong> `}${what}</li>`)}
    </ul>
  `;
}

function* troubles({ reason, models, hosts, upstreams, memory }) {
  if (reason) yield ["The gateway:", reason];
  for (const { failure } of models) if (failure) yield ["", failure];
  for (const { name, reachable, reason: why } of hosts) if (!reachable) yield [`${name}:`, why];
  for (const { name, reason: why } of upstreams) if (why) yield [`${name}:`, why];
  if (memory.stranded_bytes) yield ["Memory:", `${bytes(memory.stranded_bytes)} did not come back from workers that ended.`];
  if (memory.pressure && memory.pressure !== "normal") yield ["Memory:", `the system is short of it (${memory.pressure}).`];
}
