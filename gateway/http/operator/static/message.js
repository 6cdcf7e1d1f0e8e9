// One message of a conversation.

import { condition } from "./condition.js";
import { Copy } from "./copy.js";
import { count, exact, rate } from "./format.js";
import { html, useState } from "./html.js";
import { Markdown } from "./markdown.js";

const WHO = { user: "You", tool: "Tool" };

// `model` is the status of an answer's model, if this gateway has it, and `request` that of its
// request; `onAgain` asks for the answer once more.
export function Message({ message, model, request, onResult, onAgain }) {
  const { role, text, pictures = [], reasoning, toolCalls = [], state, error } = message;
  const growing = state === "waiting" || state === "streaming";
  return html`
    <li class=${`message ${role} ${growing ? "growing" : ""}`} aria-busy=${growing}>
      <p class="who">${WHO[role] ?? message.model}</p>
      ${pictures.map((url, at) => html`<img class="picture" src=${url} alt=${`Picture ${at + 1}`} />`)}
      ${reasoning &&
      html`<details class="reasoning" open=${growing && !text}>
        <summary>Reasoning</summary>
        <${Markdown} text=${reasoning} growing=${growing && !text} />
      </details>`}
      ${text && (role === "assistant" ? html`<${Markdown} text=${text} growing=${growing} />` : html`<div class="text plain">${text}</div>`)}
      ${toolCalls.map((call) => html`<${ToolCall} key=${call.id} call=${call} onResult=${onResult} />`)}
      ${state === "waiting" && html`<p class="sum">${waitsFor(model)}</p>`}
      ${state === "streaming" && pauses(model, request) && html`<p class="sum pause" role="status">${pauses(model, request)}</p>`}
      ${error && html`<p class="error" role="alert">${error}</p>`}
      ${role === "assistant" &&
      !growing &&
      html`<div class="below">
        ${text && html`<${Copy} text=${text} what="the answer" />`}
        ${onAgain && html`<button type="button" class="quiet" onClick=${onAgain}>Answer again</button>`}
        <span class="sum">${figures(message, model)}</span>
      </div>`}
    </li>
  `;
}

function waitsFor(model) {
  if (!model || model.state === "ready") return "Waiting for the model…";
  return `Waiting: ${condition(model)}…`;
}

// Why no more of an answer comes: its worker is gone. Null while it may come.
function pauses(model, request) {
  const gone = model && !["ready", "draining"].includes(model.state);
  if (!gone && request?.state !== "parked") return null;
  return `The model's process ended: the answer goes on in another one${gone ? `; ${condition(model)}` : ""}…`;
}

// How an answer ended, how fast it was, and how much of the context it took.
function figures({ state, usage, finishReason, firstMs, lastMs }, model) {
  const parts = [];
  if (state === "stopped") parts.push("Stopped.");
  if (state === "interrupted") parts.push("Interrupted.");
  if (usage) {
    const { prompt_tokens: before, completion_tokens: tokens } = usage;
    parts.push(`${count(before)} tokens in, ${count(tokens)} out`);
    if (tokens > 1 && lastMs > firstMs) parts.push(`${rate(((tokens - 1) * 1000) / (lastMs - firstMs))} tokens/s`);
    if (firstMs !== null) parts.push(`first after ${exact(firstMs / 1000)}`);
    if (model?.context_tokens) parts.push(`${count(before + tokens)} of ${count(model.context_tokens)} tokens of context`);
  }
  if (finishReason === "length") parts.push("cut at its limit");
  return parts.join(" · ");
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
