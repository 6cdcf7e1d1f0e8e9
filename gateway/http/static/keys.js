// API keys, and what was used under them.

import { ask, askJson } from "./api.js";
import { Confirm } from "./confirm.js";
import { Failure } from "./failure.js";
import { count, day } from "./format.js";
import { html, useEffect, useState } from "./html.js";
import { NewKey } from "./new_key.js";
import { askableIds } from "./upstreams.js";

const EVERY_MS = 5000;
const TODAY = ["requests", "prompt_tokens", "completion_tokens"];

export function Keys({ live }) {
  const [keys, setKeys] = useState(null);
  const [usage, setUsage] = useState({});
  const [error, setError] = useState(null);
  const [asked, setAsked] = useState(null);
  const [made, setMade] = useState(null);
  const [turn, setTurn] = useState(0);

  useEffect(() => {
    const over = new AbortController();
    const look = async () => {
      try {
        const options = { signal: over.signal };
        const [found, used] = await Promise.all([
          askJson("/admin/v1/keys", options),
          askJson("/admin/v1/usage", options),
        ]);
        setKeys(found.keys);
        setUsage(Object.fromEntries(used.keys.map((each) => [each.name, each])));
      } catch (failure) {
        if (failure.name !== "AbortError") setError(failure);
      }
    };
    look();
    const timer = setInterval(look, EVERY_MS);
    return () => {
      over.abort();
      clearInterval(timer);
    };
  }, [turn]);

  const act = async (path, options) => {
    setError(null);
    try {
      const response = await ask(path, options);
      setTurn((before) => before + 1);
      return await response.json();
    } catch (failure) {
      setError(failure);
      return null;
    }
  };
  const add = async (terms) => {
    const key = await act("/admin/v1/keys", { method: "POST", body: terms });
    if (key) setMade(key);
    return key !== null;
  };
  const revoke = (name) =>
    setAsked({
      title: `Revoke ${name}?`,
      text: "Its requests end at once, also those that run. It can't be undone.",
      verb: "Revoke",
      act: () => act(`/admin/v1/keys/${encodeURIComponent(name)}`, { method: "DELETE" }),
    });
  if (keys === null) return html`<${Failure} error=${error} />`;
  return html`
    <${Failure} error=${error} onClose=${() => setError(null)} />
    <${Secret} made=${made} onClose=${() => setMade(null)} />
    ${keys.length === 0
      ? html`<p class="empty">
          There are none, so every program of this machine may do everything. With the first one that
          ends: requests need a key then, and this page the admin key.
        </p>`
      : html`<${Table} keys=${keys} usage=${usage} onRevoke=${revoke} />`}
    <${NewKey} models=${askableIds(live.status)} onAdd=${add} />
    <${Confirm} question=${asked} onClose=${() => setAsked(null)} />
  `;
}

function Secret({ made, onClose }) {
  if (!made) return null;
  return html`
    <div class="notice" role="status">
      <p>The key ${made.name}, said this once:</p>
      <p><code class="secret">${made.key}</code></p>
      <div class="actions">
        <button onClick=${() => navigator.clipboard?.writeText(made.key)}>Copy</button>
        <button onClick=${onClose}>I have it</button>
      </div>
    </div>
  `;
}

function Table({ keys, usage, onRevoke }) {
  const others = Object.values(usage).filter(({ name }) => !keys.some((each) => each.name === name));
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label="Keys">
      <table>
        <thead>
          <tr>
            <th scope="col" rowspan="2">Key</th>
            <th scope="col" rowspan="2">May</th>
            <th scope="colgroup" colspan="3">Today</th>
            <th scope="colgroup" colspan="3">This month</th>
            <th scope="col" rowspan="2">Revoke</th>
          </tr>
          <tr>
            ${["Today", "This month"].map(() => ["Requests", "In", "Out"].map((each) => html`<th scope="col">${each}</th>`))}
          </tr>
        </thead>
        <tbody>
          ${[...keys, ...others].map(
            (each) => html`
              <tr class=${each.revoked_at ? "over" : ""}>
                <th scope="row">${each.name}</th>
                <td>${"created_at" in each ? terms(each) : ""}</td>
                ${["today", "month"].map((when) =>
                  TODAY.map((what) => html`<td class="number">${count(usage[each.name]?.[when][what] ?? 0)}</td>`),
                )}
                <td>
                  ${"created_at" in each &&
                  !each.revoked_at &&
                  html`<button class="quiet" aria-label=${`Revoke ${each.name}`} onClick=${() => onRevoke(each.name)}>Revoke</button>`}
                </td>
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}

function terms(key) {
  if (key.revoked_at) return `revoked ${day(key.revoked_at)}`;
  const said = [
    key.models && `only ${key.models.join(", ")}`,
    key.rpm && `${count(key.rpm)} requests/min`,
    key.tpm && `${count(key.tpm)} tokens/min`,
    key.concurrent && `${key.concurrent} at once`,
    key.share && `share ${key.share}`,
    key.priority !== null && `priority ${key.priority}`,
    key.expires_at && `until ${day(key.expires_at)}`,
  ].filter(Boolean);
  return said.length > 0 ? said.join(", ") : "everything";
}
