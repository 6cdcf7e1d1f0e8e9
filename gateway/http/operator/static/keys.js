// API keys, and what was used under them.

import { ask, askJson } from "./api.js";
import { Confirm } from "./confirm.js";
import { Failure } from "./failure.js";
import { count, day } from "./format.js";
import { html, useEffect, useState } from "./html.js";
import { KeyForm } from "./new_key.js";
import { askableIds } from "./upstreams.js";

const EVERY_MS = 5000;
const TODAY = ["requests", "prompt_tokens", "completion_tokens"];

const NONE =
  "There are none, so every program of this machine may do everything. The first key changes this: from then on every client needs a key, and this page the admin key.";
const NONE_LEFT = "None is left, and requests still need one.";

const pathOf = (name) => `/admin/v1/keys/${encodeURIComponent(name)}`;

export function Keys({ live }) {
  const [keys, setKeys] = useState(null);
  const [usage, setUsage] = useState({});
  const [error, setError] = useState(null);
  const [asked, setAsked] = useState(null);
  const [made, setMade] = useState(null);
  const [changed, setChanged] = useState(null);
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
        setKeys(found);
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
  const change = async (terms) => {
    const done = await act(pathOf(changed.name), { method: "POST", body: terms });
    if (done) setChanged(null);
    return done !== null;
  };
  const off = () => {
    if (keys.kept) return setError(new Error(keys.kept));
    setAsked({
      title: "Go on without keys?",
      text:
        "All keys are revoked for good, and what runs under them ends. Then every program and every account of this machine may do everything, without a key.",
      verb: "Revoke all keys",
      act: () => act("/admin/v1/keys", { method: "DELETE" }),
    });
  };
  const revoke = (name) =>
    setAsked({
      title: `Revoke ${name}?`,
      text: "Its requests end at once, also those that run. It can't be undone.",
      verb: "Revoke",
      act: () => act(pathOf(name), { method: "DELETE" }),
    });
  if (keys === null) return html`<${Failure} error=${error} />`;
  return html`
    <${Failure} error=${error} onClose=${() => setError(null)} />
    <${Secret} made=${made} onClose=${() => setMade(null)} />
    ${keys.keys.length === 0 ? html`<p class="empty">${keys.required ? NONE_LEFT : NONE}</p>` : ""}
    <${Table} keys=${keys.keys} usage=${usage} reads=${live.reads} onChange=${setChanged} onRevoke=${revoke} />
    ${!live.reads &&
    html`
      <${KeyForm} key=${changed?.name} changed=${changed} models=${askableIds(live.status)}
        onTerms=${changed ? change : add} onClose=${() => setChanged(null)} />
      ${keys.required && html`<p><button class="quiet" onClick=${off}>Go on without keys…</button></p>`}
    `}
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

function Table({ keys, usage, reads, onChange, onRevoke }) {
  const others = Object.values(usage).filter(({ name }) => !keys.some((each) => each.name === name));
  if (keys.length + others.length === 0) return null;
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label="Keys">
      <table>
        <thead>
          <tr>
            <th scope="col" rowspan="2">Key</th>
            <th scope="col" rowspan="2">May</th>
            <th scope="colgroup" colspan="3">Today</th>
            <th scope="colgroup" colspan="3">This month</th>
            ${!reads && html`<th scope="col" rowspan="2">Orders</th>`}
          </tr>
          <tr>
            ${["Today", "This month"].map(() => ["Requests", "In", "Out"].map((each) => html`<th scope="col">${each}</th>`))}
          </tr>
        </thead>
        <tbody>
          ${[...keys, ...others].map(
            (each) => html`
              <tr class=${"created_at" in each ? "" : "over"}>
                <th scope="row">${each.name}</th>
                <td>${"created_at" in each ? terms(each) : each.name === "admin" ? "everything" : "revoked"}</td>
                ${["today", "month"].map((when) =>
                  TODAY.map((what) => html`<td class="number">${count(usage[each.name]?.[when][what] ?? 0)}</td>`),
                )}
                ${!reads &&
                html`<td>
                  ${"created_at" in each &&
                  html`
                    <button class="quiet" aria-label=${`Change ${each.name}`} onClick=${() => onChange(each)}>Change</button>
                    <button class="quiet" aria-label=${`Revoke ${each.name}`} onClick=${() => onRevoke(each.name)}>Revoke</button>
                  `}
                </td>`}
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}

function terms(key) {
  const said = [
    key.reads && "only reads",
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
