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
import { useFollowing } from "./following.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Message } from "./message.js";
import { Settings, useSettings } from "./settings.js";
import { askableIds } from "./upstreams.js";

// `wanted` is the model that a link names, or empty.
export function Playground({ live, wanted }) {
  const [conversations, setConversations] = useState([]);
  const [current, setCurrent] = useState(newConversation);
  const [listed, setListed] = useState(false);
  const [error, setError] = useState(null);
  const [settings, changeSetting] = useSettings();
  const { box, content, away, toEnd } = useFollowing();
  // By their conversations' ids: the answers that come now.
  const attempts = useRef(new Map());
  const ids = askableIds(live.status);
  const model = ids.includes(settings.model) ? settings.model : (ids[0] ?? "");

  const unkept = () => setError({ message: "This browser doesn't keep conversations: they are gone with this page." });
  useEffect(() => {
    allConversations().then((found) => {
      setConversations(found);
      if (found.length > 0) setCurrent(found[0]);
    }, unkept);
    return () => attempts.current.forEach((each) => each.abort());
  }, []);

  useEffect(() => {
    if (wanted) changeSetting("model", wanted);
  }, [wanted]);

  const open = (conversation) => {
    setCurrent(conversation);
    setListed(false);
    toEnd();
    document.getElementById("message").focus();
  };
  // Of a conversation: in the list, and before its reader if it is the open one.
  const show = (conversation) => {
    const shown = (each) => (each.id === conversation.id ? conversation : each);
    setCurrent(shown);
    setConversations((known) => known.map(shown));
  };
  const ask = async (history) => {
    const attempt = new AbortController();
    let latest = { ...current, changedAt: Date.now(), messages: history };
    attempts.current.set(latest.id, attempt);
    const lives = () => attempts.current.get(latest.id) === attempt;
    setConversations((known) => [latest, ...known.filter((each) => each.id !== latest.id)]);
    show(latest);
    toEnd();
    await keepConversation(latest).catch(unkept);
    const draw = atLeisure(() => lives() && show(latest));
    await answer(model, history, settings, attempt.signal, (answered) => {
      latest = { ...latest, messages: [...history, answered] };
      draw();
    });
    // It may have been deleted meanwhile.
    if (!lives()) return;
    attempts.current.delete(latest.id);
    show(latest);
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
    attempts.current.get(conversation.id)?.abort();
    attempts.current.delete(conversation.id);
    deleteConversation(conversation.id).catch(unkept);
    setConversations((known) => known.filter((each) => each.id !== conversation.id));
    if (conversation.id === current.id) setCurrent(newConversation());
  };
  const busy = attempts.current.has(current.id);
  const calls = openCalls(current.messages);
  const last = current.messages.at(-1);
  const statusOf = (id) => live.status.models.find((each) => each.id === id);
  return html`
    <div class="playground">
      <aside aria-label="Conversations" class=${listed ? "listed" : undefined}>
        <button onClick=${() => open(newConversation())}>New conversation</button>
        <button class="lister" aria-expanded=${listed} onClick=${() => setListed(!listed)}>Conversations</button>
        <ul>
          ${conversations.map(
            (each) => html`
              <li key=${each.id} class=${each.id === current.id ? "current" : ""}>
                <button class="quiet title" aria-current=${each.id === current.id ? "true" : undefined}
                  onClick=${() => open(each)}>
                  ${titleOf(each)}${attempts.current.has(each.id) && html`<span class="unseen">, is being answered</span><span class="dot"></span>`}
                </button>
                <button class="quiet" aria-label=${`Delete ${titleOf(each)}`} onClick=${() => remove(each)}>×</button>
              </li>
            `,
          )}
        </ul>
      </aside>
      <div class="talk">
        <div class="choices">
          <label class="choice">
            Model
            <select value=${model} onChange=${(event) => changeSetting("model", event.target.value)}>
              ${ids.map((id) => html`<option value=${id}>${id}</option>`)}
            </select>
          </label>
          <${Settings} settings=${settings} onChange=${changeSetting} />
        </div>
        <${Failure} error=${error} />
        <div class="conversation" ref=${box} tabindex="0" role="region" aria-label="Conversation">
          <div ref=${content}>
            ${current.messages.length === 0 &&
            html`<p class="empty">${model ? `Ask ${model}. The conversation stays in this browser.` : html`There is no model to ask: <a href="#overview">find one</a>.`}</p>`}
            <ol class="messages">
              ${current.messages.map(
                (each, at) => html`
                  <${Message} key=${`${current.id} ${at}`} message=${each} model=${statusOf(each.model)}
                    onAgain=${!busy && each === last && again}
                    onResult=${!busy && each.toolCalls?.some((call) => calls.includes(call.id)) ? onResult : null} />
                `,
              )}
            </ol>
            ${!busy && last && last.role !== "assistant" && html`<button class="quiet" onClick=${again}>Answer again</button>`}
          </div>
        </div>
        <p class="unseen" role="status">${busy ? "The model answers." : last?.role === "assistant" ? last.text : ""}</p>
        <div class="foot">
          ${away && html`<button class="to-end" onClick=${toEnd}>To the end ↓</button>`}
          <${Composer} busy=${busy} mute=${!model} onSend=${send} onStop=${() => attempts.current.get(current.id)?.abort()} />
        </div>
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

// Draws at most once a frame, and for a quarter of the time at most: a long block takes a while.
function atLeisure(draw) {
  let due = false;
  let missed = false;
  const rested = () => {
    due = false;
    if (missed) soon();
  };
  const soon = () => {
    missed = due;
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      const began = performance.now();
      missed = false;
      draw();
      setTimeout(() => setTimeout(rested, 3 * (performance.now() - began)));
    });
  };
  return soon;
}
