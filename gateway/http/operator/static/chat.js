// One answer of a model, as it comes.
//
// A message is { role, text, pictures, reasoning, toolCalls, toolCallId, state, requestId, error, usage,
// firstMs, lastMs }: `pictures` are data: URLs, a tool call is { id, name, arguments }, `state` is that
// of an answer: waiting, streaming, done, stopped, failed, interrupted (its page was closed); its first
// and last token came that many milliseconds after the question.

import { ApiError, ask } from "./api.js";
import { messages } from "./server_sent_events.js";

export function userMessage(text, pictures) {
  return { role: "user", text, pictures };
}

export function toolMessage(toolCallId, text) {
  return { role: "tool", text, toolCallId };
}

const beginning = {
  role: "assistant",
  text: "",
  reasoning: "",
  toolCalls: [],
  state: "waiting",
  error: null,
  usage: null,
  firstMs: null,
  lastMs: null,
};

// Calls `tell` with the answer whenever there is more of it, and in the end with the whole. Never
// throws: what goes wrong is the answer's `error`.
export async function answer(model, history, settings, signal, tell) {
  const askedAt = performance.now();
  let answered = { ...beginning, model };
  const update = (change) => {
    answered = { ...answered, ...change };
    tell(answered);
  };
  update({});
  try {
    const body = requestBody(model, history, settings);
    const response = await ask("/v1/chat/completions", { method: "POST", body, signal });
    for await (const { event, data } of messages(response)) {
      if (data === null || data === "[DONE]") continue;
      const told = JSON.parse(data);
      if (event === "error" || told.error) throw new ApiError(told.error.message);
      update(withChunk(answered, told, performance.now() - askedAt));
    }
    if (!answered.finishReason) throw new ApiError("The connection ended before the answer did.");
    update({ state: "done" });
  } catch (error) {
    if (error.name === "AbortError") update({ state: "stopped" });
    else if (error instanceof ApiError) update({ state: "failed", error: error.message });
    else update({ state: "failed", error: `The connection was lost: ${error.message}.` });
  }
}

// What a chunk of the stream changes, `ms` after the question.
function withChunk(answered, chunk, ms) {
  const change = { requestId: chunk.id?.replace("chatcmpl-", "") };
  if (chunk.usage) change.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (!choice) return change;
  change.state = "streaming";
  if (choice.finish_reason) change.finishReason = choice.finish_reason;
  const { content, tool_calls: calls } = choice.delta;
  const thought = choice.delta.reasoning_content ?? choice.delta.reasoning;
  if (content) change.text = answered.text + content;
  if (thought) change.reasoning = answered.reasoning + thought;
  if (calls) change.toolCalls = calls.reduce(withCall, answered.toolCalls);
  if (content || thought || calls) {
    change.firstMs = answered.firstMs ?? ms;
    change.lastMs = ms;
  }
  return change;
}

function withCall(known, delta) {
  const before = known[delta.index] ?? { id: delta.id, name: "", arguments: "" };
  const after = {
    id: before.id ?? delta.id,
    name: before.name + (delta.function?.name ?? ""),
    arguments: before.arguments + (delta.function?.arguments ?? ""),
  };
  return known.toSpliced(delta.index, 1, after);
}

// Throws ApiError: what was typed as tools is no JSON.
function requestBody(model, history, settings) {
  const system = settings.system.trim();
  const body = {
    model,
    stream: true,
    stream_options: { include_usage: true },
    messages: [
      ...(system ? [{ role: "system", content: system }] : []),
      // An answer without anything in it would confuse a template.
      ...history.filter((each) => each.role !== "assistant" || each.text || each.toolCalls.length > 0).map(wire),
    ],
  };
  if (settings.temperature !== "") body.temperature = Number(settings.temperature);
  if (settings.maxTokens !== "") body.max_tokens = Number(settings.maxTokens);
  if (settings.think !== "") body.enable_thinking = settings.think === "yes";
  if (settings.tools.trim()) {
    body.tools = parsedTools(settings.tools);
    body.tool_choice = settings.toolChoice;
  }
  return body;
}

function parsedTools(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ApiError(`The tools are no JSON: ${error.message}`);
  }
}

// As OpenAI's API has it.
function wire({ role, text, pictures, toolCalls, toolCallId }) {
  if (role === "tool") return { role, content: text, tool_call_id: toolCallId };
  if (role === "assistant" && toolCalls.length > 0) {
    const calls = toolCalls.map(({ id, name, arguments: given }) => ({
      id,
      type: "function",
      function: { name, arguments: given },
    }));
    return { role, content: text || null, tool_calls: calls };
  }
  if (!pictures?.length) return { role, content: text };
  const parts = pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role, content: [...parts, ...(text ? [{ type: "text", text }] : [])] };
}
