// The form for another API key.

import { html, useRef } from "./html.js";

const DAY_S = 86400;

export function NewKey({ models, onAdd }) {
  const form = useRef(null);
  const submit = async (event) => {
    event.preventDefault();
    const data = new FormData(form.current);
    const terms = { name: data.get("name").trim() };
    const chosen = data.getAll("models");
    if (chosen.length > 0) terms.models = chosen;
    for (const each of ["rpm", "tpm", "concurrent", "share"]) {
      if (data.get(each)) terms[each] = Number(data.get(each));
    }
    if (data.get("days")) terms.expires_at = Date.now() / 1000 + Number(data.get("days")) * DAY_S;
    if (await onAdd(terms)) form.current.reset();
  };
  const number = (name, label) => html`
    <label>${label}<input name=${name} type="number" min="1" step="1" inputmode="numeric" /></label>
  `;
  return html`
    <section aria-labelledby="new-key">
      <h2 id="new-key">New key</h2>
      <form class="fields" ref=${form} onSubmit=${submit}>
        <label>Name<input name="name" required autocomplete="off" spellcheck=${false} autocapitalize="off" /></label>
        ${number("rpm", "Requests a minute")} ${number("tpm", "Tokens a minute")}
        ${number("concurrent", "Answers at once")} ${number("share", "Share, beside other keys")}
        ${number("days", "Days until it expires")}
        <fieldset>
          <legend>Models (none chosen: all)</legend>
          ${models.map((id) => html`<label class="check"><input type="checkbox" name="models" value=${id} />${id}</label>`)}
        </fieldset>
        <button class="primary">Make the key</button>
      </form>
    </section>
  `;
}
