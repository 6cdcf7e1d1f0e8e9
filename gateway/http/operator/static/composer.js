// Where the next message is written: Enter sends, Shift and Enter begin a new line.

import { html, useEffect, useRef, useState } from "./html.js";
import { pictureUrl } from "./pictures.js";

// `draft` is { text, pictures }, what was written in a conversation and not sent yet: it changes in place.
export function Composer({ draft, busy, mute, onSend, onStop }) {
  const [, setTurn] = useState(0);
  const [error, setError] = useState(null);
  const text = useRef(null);
  const file = useRef(null);
  const { pictures } = draft;

  useEffect(() => {
    text.current.value = draft.text;
    setError(null);
  }, [draft]);

  const setPictures = (next) => {
    draft.pictures = next;
    setTurn((before) => before + 1);
  };
  const add = async (files) => {
    setError(null);
    for (const each of files) {
      try {
        const url = await pictureUrl(each);
        setPictures([...draft.pictures, url]);
      } catch {
        setError(`${each.name} is no picture that this browser can read.`);
      }
    }
  };
  const send = (event) => {
    event?.preventDefault();
    const written = text.current.value.trim();
    if (busy || mute || (!written && pictures.length === 0)) return;
    onSend(written, pictures);
    draft.text = text.current.value = "";
    setPictures([]);
  };
  const onKeyDown = (event) => {
    // Enter also ends a word of an input method.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  };
  const onPaste = (event) => {
    const pasted = [...event.clipboardData.files];
    if (pasted.length > 0) {
      event.preventDefault();
      add(pasted);
    }
  };
  const onFiles = () => {
    add([...file.current.files]);
    file.current.value = "";
  };
  return html`
    <form class="composer" onSubmit=${send}>
      ${error && html`<p class="error" role="alert">${error}</p>`}
      ${pictures.length > 0 &&
      html`<div class="pictures">
        ${pictures.map(
          (url, at) => html`
            <button type="button" class="quiet" aria-label=${`Remove picture ${at + 1}`}
              onClick=${() => setPictures(pictures.toSpliced(at, 1))}>
              <img src=${url} alt="" />
            </button>
          `,
        )}
      </div>`}
      <label class="unseen" for="message">Message</label>
      <textarea id="message" ref=${text} rows="1" placeholder="Write a message" onKeyDown=${onKeyDown} onPaste=${onPaste}
        onInput=${(event) => (draft.text = event.target.value)}></textarea>
      <div class="actions">
        <label class="button">
          Add a picture
          <input class="unseen" type="file" accept="image/*" multiple ref=${file} onChange=${onFiles} />
        </label>
        ${busy
          ? html`<button type="button" class="danger" onClick=${onStop}>Stop</button>`
          : html`<button class="primary" disabled=${mute}>Send</button>`}
      </div>
    </form>
  `;
}
