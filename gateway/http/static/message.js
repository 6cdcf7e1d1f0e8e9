// One message of a conversation.

import { count } from "./format.js";
import { html, useState } from "./html.js";

const WHO = { user: "You", tool: "Tool" };

const STATES = {
  waiting: "Waiting for the model…",
  stopped: "Stopped.",
};

export function Message({ message, onResult }) {
  const { role, text, pictures = [], reasoning, toolCalls = [], state, error, usage } = message;
  return html`
    <li class=${`message ${role}`} aria-busy=${state === "waiting" || state === "streaming"}>
      <p class="who">${WHO[role] ?? message.model}</p>
      ${pictures.map((url, at) => html`<img class="picture" src=${url} alt=${`Picture ${at + 1}`} />`)}
      ${reasoning &&
      html`<details class="reasoning" open=${state === "streaming" && !text}>
        <summary>Reasoning</summary>
        <${Text} text=${reasoning} />
      </details>`}
      <${Text} text=${text} />
      ${toolCalls.map((call) => html`<${ToolCall} key=${call.id} call=${call} onResult=${onResult} />`)}
      ${STATES[state] && html`<p class="sum">${STATES[state]}</p>`}
      ${error && html`<p class="error" role="alert">${error}</p>`}
      ${usage &&
      html`<p class="sum">
        ${count(usage.prompt_tokens)} tokens in, ${count(usage.completion_tokens)} out
        ${message.finishReason === "length" && ", cut at its limit"}
      </p>`}
    </li>
  `;
}

// Text with fenced code; all else of Markdown is left as it is.
function Text({ text }) {
  if (!text) return null;
  const parts = text.split(/^```([^\n`]*)\n?/m);
  return html`<div class="text">
    ${parts.map((part, at) => {
      const block = Math.floor(at / 2);
      // Of each fence the split leaves what stands behind it, a language or nothing.
      if (at % 2 === 1) return null;
      if (block % 2 === 1) return html`<pre tabindex="0"><code>${part}</code></pre>`;
      return part.trim() && html`<p>${part.trim()}</p>`;
    })}
  </div>`;
}

function ToolCall({ call, onResult }) {
  const [result, setResult] = useState("");
  const submit = (event) => {
    event.preventDefault();
    onResult(call.id, result);
  };
  return html`
    <div class="tool-call">
      <p>Calls <code>${call.name}</code></p>
      <pre tabindex="0"><code>${pretty(call.arguments)}</code></pre>
      ${onResult &&
      html`<form class="line" onSubmit=${submit}>
        <label>Its result<input value=${result} required onInput=${(event) => setResult(event.target.value)} /></label>
        <button>Answer</button>
      </form>`}
    </div>
  `;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
