// Talking to a model. Conversations stay in this browser.

import { answer, toolMessage, userMessage } from "./chat.js";
import { Composer } from "./composer.js";
import { Confirm } from "./confirm.js";
import {
  allConversations,
  deleteConversation,
  interrupted,
  keepConversation,
  leaveConversation,
  newConversation,
  storedConversation,
  titleOf,
  watchConversations,
} from "./conversation_store.js";
import { Failure } from "./failure.js";
import { useFollowing } from "./following.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Message } from "./message.js";
import { Settings, useSettings } from "./settings.js";
import { askableIds } from "./upstreams.js";

// An answer that comes is kept as often.
const KEEP_MS = 1000;

// `wanted` is the model that a link names, or empty.
export function Playground({ live, wanted }) {
  const [conversations, setConversations] = useState([]);
  // One that nothing was asked in yet: with its draft it stays the new one.
  const fresh = useRef(null);
  fresh.current ??= newConversation();
  const drafts = useRef(new Map());
  const [current, setCurrent] = useState(fresh.current);
  const [asked, setAsked] = useState(null);
  const [listed, setListed] = useState(false);
  const [error, setError] = useState(null);
  const [settings, changeSetting] = useSettings();
  const { box, content, away, toEnd } = useFollowing();
  // By their conversations' ids: the answers that come now.
  const attempts = useRef(new Map());
  const list = useRef(null);
  const ids = askableIds(live.status);
  const model = ids.includes(settings.model) ? settings.model : (ids[0] ?? "");

  const unkept = () => setError({ message: "This browser doesn't keep conversations: they are gone with this page." });
  useEffect(() => {
    allConversations().then((found) => {
      const known = found.map(interrupted);
      setConversations(known);
      if (known.length > 0) setCurrent(known[0]);
    }, unkept);
    const unwatch = watchConversations((told) => take(told).catch(unkept));
    const onLeave = () => attempts.current.forEach((each) => each.leave());
    addEventListener("pagehide", onLeave);
    return () => {
      attempts.current.forEach((each) => each.abort());
      unwatch();
      removeEventListener("pagehide", onLeave);
    };
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
  // As another tab has it now, unless this one has an answer in it: `keepConversation` parts these.
  const take = async ({ id, over }) => {
    const stored = await storedConversation(id);
    if (attempts.current.has(id)) return;
    if (!stored) {
      forget(id);
      return;
    }
    const conversation = over ? interrupted(stored) : stored;
    setCurrent((each) => (each.id === id ? conversation : each));
    setConversations((known) => [conversation, ...known.filter((each) => each.id !== id)].toSorted((one, other) => other.changedAt - one.changedAt));
  };
  const forget = (id) => {
    setConversations((known) => known.filter((each) => each.id !== id));
    setCurrent((each) => (each.id === id ? fresh.current : each));
  };
  // Asks for the answer to `history`; `old` is the one before, which stays until there is more of the new one.
  const ask = async (history, old = null) => {
    const abort = new AbortController();
    const attempt = { abort: () => abort.abort() };
    let [left, dropped] = [false, false];
    let latest = { ...current, changedAt: Date.now(), messages: old ? [...history, old] : history };
    let shown = latest;
    attempts.current.set(latest.id, attempt);
    if (latest.id === fresh.current.id) fresh.current = newConversation();
    setConversations((known) => [latest, ...known.filter((each) => each.id !== latest.id)]);
    show(latest);
    toEnd();
    let kept = Promise.resolve();
    let due = null;
    const keep = () => {
      clearTimeout(due);
      due = null;
      kept = kept.then(async () => {
        if (dropped) return;
        const id = await keepConversation(latest);
        if (id === latest.id) return;
        const before = latest.id;
        [latest, shown] = [{ ...latest, id }, { ...shown, id }];
        if (attempts.current.delete(before)) attempts.current.set(id, attempt);
        drafts.current.set(id, draftOf(before));
        drafts.current.delete(before);
        setCurrent((each) => (each.id === before ? shown : each));
        setConversations((known) => [shown, ...known]);
        setError({ message: "Another tab has gone on with this conversation: what you asked here is in one of its own." });
        await take({ id: before, over: false });
      }).catch(unkept);
      return kept;
    };
    // Its page goes away, though it may come back.
    attempt.leave = () => {
      left = true;
      abort.abort();
      latest = interrupted(latest);
      attempts.current.delete(latest.id);
      show(latest);
      keep();
      leaveConversation(latest.id);
    };
    attempt.drop = () => {
      left = dropped = true;
      abort.abort();
      attempts.current.delete(latest.id);
    };
    await keep();
    const draw = atLeisure(() => attempts.current.get(latest.id) === attempt && show(shown));
    let answered = null;
    await answer(model, history, settings, abort.signal, (more) => {
      if (left) return;
      answered = more;
      shown = { ...latest, messages: [...latest.messages, answered] };
      if (!old || answered.firstMs !== null || answered.state === "done") {
        shown = latest = { ...latest, messages: [...history, answered] };
      }
      draw();
      due ??= setTimeout(keep, KEEP_MS);
    });
    if (left) return;
    if (answered.error && !latest.messages.includes(answered)) setError({ message: answered.error });
    attempts.current.delete(latest.id);
    show(latest);
    await keep();
  };
  const send = (text, pictures) => ask([...current.messages, userMessage(text, pictures)]);

  // A model goes on once all of its calls are answered.
  const onResult = (id, result) => {
    const messages = [...current.messages, toolMessage(id, result)];
    if (openCalls(messages).length > 0) show({ ...current, messages });
    else ask(messages);
  };
  // A page that was closed in mid-answer leaves a question without one.
  const again = () => {
    if (last.role !== "assistant") ask(current.messages);
    else ask(current.messages.slice(0, -1), last.firstMs === null ? null : last);
  };
  const remove = (conversation) => {
    attempts.current.get(conversation.id)?.drop();
    deleteConversation(conversation.id).catch(unkept);
    drafts.current.delete(conversation.id);
    forget(conversation.id);
    // The button that was pressed is gone.
    list.current.querySelector("button").focus();
  };
  const askToRemove = (conversation) =>
    setAsked({
      title: "Delete the conversation?",
      text: `“${titleOf(conversation)}” is kept in this browser alone. It can't be undone.`,
      verb: "Delete",
      act: () => remove(conversation),
    });
  const draftOf = (id) => {
    if (!drafts.current.has(id)) drafts.current.set(id, { text: "", pictures: [] });
    return drafts.current.get(id);
  };
  const stop = () => attempts.current.get(current.id)?.abort();
  const onKeyDown = (event) => {
    if (event.key === "Escape" && !event.isComposing && busy) stop();
  };
  const busy = attempts.current.has(current.id);
  const calls = openCalls(current.messages);
  const last = current.messages.at(-1);
  const statusOf = (id) => live.status.models.find((each) => each.id === id);
  return html`
    <div class="playground">
      <aside ref=${list} aria-label="Conversations" class=${listed ? "listed" : undefined}>
        <button onClick=${() => open(fresh.current)}>New conversation</button>
        <button class="lister" aria-expanded=${listed} onClick=${() => setListed(!listed)}>Conversations</button>
        <ul>
          ${conversations.map(
            (each) => html`
              <li key=${each.id} class=${each.id === current.id ? "current" : ""}>
                <button class="quiet title" aria-current=${each.id === current.id ? "true" : undefined}
                  onClick=${() => open(each)}>
                  ${titleOf(each)}${attempts.current.has(each.id) && html`<span class="unseen">, is being answered</span><span class="dot"></span>`}
                </button>
                <button class="quiet" aria-label=${`Delete ${titleOf(each)}`} onClick=${() => askToRemove(each)}>×</button>
              </li>
            `,
          )}
        </ul>
      </aside>
      <div class="talk" onKeyDown=${onKeyDown}>
        <div class="choices">
          <label class="choice">
            Model
            <select value=${model} onChange=${(event) => changeSetting("model", event.target.value)}>
              ${ids.map((id) => html`<option value=${id}>${id}</option>`)}
            </select>
          </label>
          <${Settings} settings=${settings} onChange=${changeSetting} />
        </div>
        <${Failure} error=${error} onClose=${() => setError(null)} />
        <div class="conversation" ref=${box} tabindex="0" role="region" aria-label="Conversation">
          <div ref=${content}>
            ${current.messages.length === 0 &&
            html`<p class="empty">${model ? `Ask ${model}. The conversation stays in this browser.` : html`There is no model to ask: <a href="#overview">find one</a>.`}</p>`}
            <ol class="messages">
              ${current.messages.map(
                (each, at) => html`
                  <${Message} key=${`${current.id} ${at}`} message=${each} model=${statusOf(each.model)}
                    request=${each.requestId && live.requests.find(({ id }) => id === each.requestId)}
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
          <${Composer} draft=${draftOf(current.id)} busy=${busy} mute=${!model} onSend=${send} onStop=${stop} />
        </div>
      </div>
      <${Confirm} question=${asked} onClose=${() => setAsked(null)} />
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
