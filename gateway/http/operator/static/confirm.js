// A question before something that can't be undone; the browser keeps the focus inside.

import { html, useEffect, useRef } from "./html.js";

// `question` is { title, text, verb, act }, or null.
export function Confirm({ question, onClose }) {
  const dialog = useRef(null);
  useEffect(() => {
    if (question) dialog.current.showModal();
  }, [question]);
  if (!question) return null;
  const act = () => {
    dialog.current.close();
    question.act();
  };
  return html`
    <dialog ref=${dialog} onClose=${onClose} aria-labelledby="question">
      <h2 id="question">${question.title}</h2>
      <p>${question.text}</p>
      <div class="actions">
        <button autofocus onClick=${() => dialog.current.close()}>Leave it</button>
        <button class="danger" onClick=${act}>${question.verb}</button>
      </div>
    </dialog>
  `;
}
