// The check of a model: its start, how far it is, and what the last one has found.

import { ask, askJson, modelPath } from "./api.js";
import { Failure } from "./failure.js";
import { day, findingsText } from "./format.js";
import { html, useEffect, useState } from "./html.js";
import { messages } from "./server_sent_events.js";

const ENDED_BADLY = ["failed", "cancelled"];
const OVER = ["done", ...ENDED_BADLY];
const OWNERS = { model: "the model's", conversion: "the conversion's", bulkhead: "Bulkhead's" };

// The button that starts or cancels a check, and what is shown of the check.
export function useCheck(model) {
  const [report, setReport] = useState(null);
  const [error, setError] = useState(null);
  const runs = report !== null && !OVER.includes(report.state);
  const path = modelPath(model.id, "check");

  const start = async () => {
    setError(null);
    try {
      const response = await ask(path, { method: "POST", body: { stream: true } });
      for await (const { data } of messages(response)) {
        if (data === null) continue;
        const seen = JSON.parse(data);
        setReport(seen);
        if (ENDED_BADLY.includes(seen.state)) setError({ message: seen.reason });
      }
    } catch (failure) {
      setReport(null);
      setError(failure);
    }
  };
  const cancel = () => ask(path, { method: "DELETE" }).catch(setError);
  const label = runs ? "Cancel check" : "Check";
  const button = !model.command &&
    html`<button aria-label=${`${label} of ${model.id}`} onClick=${runs ? cancel : start}>${label}</button>`;
  const view = html`
    ${runs && html`<p class="sum" role="status">${progress(report)}</p>`}
    ${model.check && html`<${Result} path=${path} check=${model.check} />`}
    <${Failure} error=${error} onClose=${() => setError(null)} />
  `;
  return { button, view };
}

function progress({ reason, sections }) {
  if (reason) return `Check: ${reason}`;
  return sections.length === 0 ? "Check: it begins" : `Check: ${sections.map((each) => each.section).join(", ")} done`;
}

function Result({ path, check }) {
  const [open, setOpen] = useState(false);
  const [report, setReport] = useState({ findings: [], sections: [] });
  const [error, setError] = useState(null);
  useEffect(() => {
    if (!open) return;
    askJson(path).then(setReport, setError);
  }, [open, check.at]);
  const leftOut = report.sections.filter((each) => !each.ran).map((each) => each.section);
  return html`
    <details class="last-check" onToggle=${(event) => setOpen(event.currentTarget.open)}>
      <summary class=${check.faults && !check.stale ? "bad" : ""}>Check: ${result(check)}</summary>
      <p>${day(check.at)}</p>
      ${report.findings.map(
        (each) => html`
          <p class=${each.severity === "fault" ? "bad" : "reason"}>
            ${each.severity}, ${each.section}: ${each.what} ${each.evidence} (${OWNERS[each.owner]}) ${each.remedy}
          </p>
        `,
      )}
      ${leftOut.length > 0 && html`<p class="reason">Left out: ${leftOut.join(", ")}.</p>`}
      <${Failure} error=${error} />
    </details>
  `;
}

export function result(check) {
  const found = findingsText(check);
  return check.stale ? `${found}, and the files have changed since` : found;
}
