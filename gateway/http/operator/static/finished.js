// Requests that have finished, and the life of each as a line in time.

import { askJson } from "./api.js";
import { clock, count, exact, rate, share } from "./format.js";
import { html, useEffect, useState } from "./html.js";

const SHOWN = 50;
const PAUSE_MS = 1000;

const SAID = {
  load: "waited for its model",
  queue: "waited for its turn",
  prefill: "prompt was read",
  tokens: "tokens came",
  parked: "waited for another worker, or for others",
  resumed: "was read anew",
  answer: "another server answered",
};
const OUTCOMES = { ok: "answered", client_left: "its client left", passed_error: "an error of its server" };

// `finished` counts all of them.
export function Finished({ finished }) {
  const requests = useFinished(finished);
  const [opened, setOpened] = useState(null);
  if (requests.length === 0) return null;
  return html`
    <h3 id="finished">Finished requests</h3>
    <div class="scroll finished" tabindex="0" role="region" aria-labelledby="finished">
      <table>
        <thead>
          <tr>
            <th scope="col">At</th>
            <th scope="col">Model</th>
            <th scope="col">Outcome</th>
            <th scope="col">Time</th>
            <th scope="col">Wait</th>
            <th scope="col">First token</th>
            <th scope="col">Tokens/s</th>
            <th scope="col">Tokens</th>
            <th scope="col">Cached</th>
            <th scope="col">Key</th>
          </tr>
        </thead>
        <tbody>
          ${requests.map((each) => {
            const isOpen = each.id === opened;
            return html`
              <${Row} key=${`${each.id} ${each.ended_at}`} request=${each} isOpen=${isOpen}
                onPress=${() => setOpened(isOpen ? null : each.id)} />
            `;
          })}
        </tbody>
      </table>
    </div>
  `;
}

// The latest first, fetched again when there are more, though not more often than once a second.
function useFinished(finished) {
  const [known, setKnown] = useState({ count: 0, requests: [] });
  const [asking, setAsking] = useState(false);
  useEffect(() => {
    if (asking || finished === known.count) return;
    setAsking(true);
    const look = async () => {
      try {
        setKnown(await askJson(`/admin/v1/requests/finished?recent=${SHOWN}`));
      } catch {
        // The connection is lost, which the page says, or the next try will do.
      }
      setTimeout(() => setAsking(false), PAUSE_MS);
    };
    look();
  }, [finished, asking]);
  return known.requests;
}

function Row({ request, isOpen, onPress }) {
  const { outcome, error, prompt_tokens: before, completion_tokens: tokens, cached_tokens: cached } = request;
  const bad = outcome !== "ok" && outcome !== "client_left";
  const press = (event) => {
    // A press on the button comes here, too; one that marks text is none.
    if (getSelection().isCollapsed || event.target.closest("button")) onPress();
  };
  return html`
    <tr class="pressed" onClick=${press}>
      <th scope="row">
        <button class="quiet" aria-expanded=${isOpen} aria-label=${`Life of the request at ${clock(request.ended_at)}, ${request.id}`}>
          ${clock(request.ended_at)}
        </button>
      </th>
      <td>${request.model ?? "–"}</td>
      <td class=${`why ${bad ? "bad" : ""}`}>
        ${OUTCOMES[outcome] ?? outcome}${error ? `: ${error}` : ""}
      </td>
      <td class="number">${exact(request.seconds)}</td>
      <td class="number">${exact(request.queue_s)}</td>
      <td class="number">${exact(request.first_token_s)}</td>
      <td class="number">${rate(request.tokens_per_s)}</td>
      <td class="number">${before === null ? "–" : `${count(before)} + ${count(tokens)}`}</td>
      <td class="number">${before ? share(cached / before) : "–"}</td>
      <td>${request.key ?? "–"}</td>
    </tr>
    ${isOpen && html`<tr class="life"><td colspan="10"><${Life} request=${request} /></td></tr>`}
  `;
}

function Life({ request }) {
  const { id, path, status, seconds, phases, outcome } = request;
  const kindOf = (phase) => (phase.kind === "answer" && outcome === "passed_error" ? "answer failed" : phase.kind);
  const width = (s) => `${(100 * s) / (seconds || 1)}%`;
  return html`
    <p class="sum"><code>${id}</code> · ${path} · ${status ?? "no answer"} · ${exact(seconds)} in all</p>
    ${phases.length === 0
      ? html`<p class="empty">It never reached a model.</p>`
      : html`
          <div class="line-in-time" aria-hidden="true">
            ${phases.map(
              (each) => html`<span class=${`phase ${kindOf(each)}`} style=${{ left: width(each.begin_s), width: width(each.end_s - each.begin_s) }}
                title=${`${SAID[each.kind]}: ${exact(each.end_s - each.begin_s)}`}></span>`,
            )}
          </div>
          <ol class="phases" aria-label="Its life">
            ${phases.map(
              (each) => html`
                <li>
                  <span class=${`swatch phase ${kindOf(each)}`}></span>
                  <strong>${exact(each.end_s - each.begin_s)}</strong> ${SAID[each.kind]}
                </li>
              `,
            )}
          </ol>
        `}
  `;
}
