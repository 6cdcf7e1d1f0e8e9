// Talking to a model. Conversations stay in this browser.

import { answer, toolMessage, userMessage } from "./chat.js";
import { Composer } from "./composer.js";
import {
  allConversations,
  deleteConversation,
  keepConversation,
  newConversation,
  titleOf,
} from "./conversation_store.js";
import { Failure } from "./failure.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Message } from "./message.js";
import { Settings, useSettings } from "./settings.js";
import { askableIds } from "./upstreams.js";

// `wanted` is the model that a link names, or empty.
export function Playground({ live, wanted }) {
  const [conversations, setConversations] = useState([]);
  const [current, setCurrent] = useState(newConversation);
  const [error, setError] = useState(null);
  const [settings, changeSetting] = useSettings();
  const stop = useRef(null);
  const [busy, setBusy] = useState(false);
  const ids = askableIds(live.status);
  const model = ids.includes(settings.model) ? settings.model : (ids[0] ?? "");

  const unkept = () => setError({ message: "This browser doesn't keep conversations: they are gone with this page." });
  useEffect(() => {
    allConversations().then((found) => {
      setConversations(found);
      if (found.length > 0) setCurrent(found[0]);
    }, unkept);
    return () => stop.current?.abort();
  }, []);

  useEffect(() => {
    if (wanted) changeSetting("model", wanted);
  }, [wanted]);

  // Of a conversation, on the screen and in the browser's store.
  const show = (conversation) => {
    setCurrent(conversation);
    setConversations((known) => [conversation, ...known.filter((each) => each.id !== conversation.id)]);
  };
  const ask = async (history) => {
    const attempt = new AbortController();
    stop.current = attempt;
    setBusy(true);
    let latest = { ...current, changedAt: Date.now(), messages: history };
    show(latest);
    await keepConversation(latest).catch(unkept);
    const draw = onceAFrame(() => show(latest));
    await answer(model, history, settings, attempt.signal, (answered) => {
      latest = { ...latest, messages: [...history, answered] };
      draw();
    });
    show(latest);
    setBusy(false);
    await keepConversation(latest).catch(unkept);
  };
  const send = (text, pictures) => ask([...current.messages, userMessage(text, pictures)]);

  // A model goes on once all of its calls are answered.
  const onResult = (id, result) => {
    const messages = [...current.messages, toolMessage(id, result)];
    if (openCalls(messages).length > 0) show({ ...current, messages });
    else ask(messages);
  };
  // A page that was closed in mid-answer leaves a question without one.
  const again = () => ask(last.role === "assistant" ? current.messages.slice(0, -1) : current.messages);
  const remove = (conversation) => {
    deleteConversation(conversation.id).catch(unkept);
    setConversations((known) => known.filter((each) => each.id !== conversation.id));
    if (conversation.id === current.id) setCurrent(newConversation());
  };
  const open = openCalls(current.messages);
  const last = current.messages.at(-1);
  return html`
    <div class="playground">
      <aside aria-label="Conversations">
        <button disabled=${busy} onClick=${() => setCurrent(newConversation())}>New conversation</button>
        <ul>
          ${conversations.map(
            (each) => html`
              <li key=${each.id} class=${each.id === current.id ? "current" : ""}>
                <button class="quiet title" disabled=${busy} aria-current=${each.id === current.id ? "true" : undefined}
                  onClick=${() => setCurrent(each)}>
                  ${titleOf(each)}
                </button>
                <button class="quiet" disabled=${busy} aria-label=${`Delete ${titleOf(each)}`} onClick=${() => remove(each)}>×</button>
              </li>
            `,
          )}
        </ul>
      </aside>
      <div class="talk">
        <${Failure} error=${error} />
        <label class="choice">
          Model
          <select value=${model} onChange=${(event) => changeSetting("model", event.target.value)}>
            ${ids.map((id) => html`<option value=${id}>${id}</option>`)}
          </select>
        </label>
        <${Settings} settings=${settings} onChange=${changeSetting} />
        <ol class="messages" aria-label="Conversation">
          ${current.messages.map(
            (each, at) => html`
              <${Message} key=${at} message=${each}
                onResult=${!busy && each.toolCalls?.some((call) => open.includes(call.id)) ? onResult : null} />
            `,
          )}
        </ol>
        <p class="unseen" role="status">${busy ? "The model answers." : last?.role === "assistant" ? last.text : ""}</p>
        ${!busy &&
        last &&
        html`<div class="actions"><button class="quiet" onClick=${again}>Answer again</button></div>`}
        <${Composer} busy=${busy} onSend=${send} onStop=${() => stop.current?.abort()} />
      </div>
    </div>
  `;
}

// Ids of the last answer's tool calls that have no result yet.
function openCalls(messages) {
  const asked = messages.findLast((each) => each.role === "assistant");
  const answered = messages.map((each) => each.toolCallId);
  return (asked?.toolCalls ?? []).map((each) => each.id).filter((id) => !answered.includes(id));
}

// Sixty pieces a second need no more drawings than the screen has frames.
function onceAFrame(draw) {
  let due = false;
  return () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      draw();
    });
  };
}
