// The form for another API key, or for the limits of one that there is.

import { html, useEffect, useRef, useState } from "./html.js";

const DAY_S = 86400;
const NUMBERS = {
  rpm: "Requests a minute",
  tpm: "Tokens a minute",
  concurrent: "Answers at once",
  share: "Share, beside other keys",
};

// `changed` is the key whose limits change; null: the form makes another key.
export function KeyForm({ changed, models, onTerms, onClose }) {
  const form = useRef(null);
  const [reads, setReads] = useState(changed?.reads ?? false);
  useEffect(() => changed && form.current.querySelector("input:not([type=checkbox])").focus(), []);
  const submit = async (event) => {
    event.preventDefault();
    const data = new FormData(form.current);
    // A limit that is left empty is none, also if there was one.
    const terms = changed ? {} : { name: data.get("name").trim(), reads };
    if (!reads) {
      const chosen = data.getAll("models");
      terms.models = chosen.length > 0 ? chosen : null;
      for (const each of Object.keys(NUMBERS)) terms[each] = data.get(each) ? Number(data.get(each)) : null;
    }
    if (data.get("days")) terms.expires_at = Date.now() / 1000 + Number(data.get("days")) * DAY_S;
    if ((await onTerms(terms)) && !changed) {
      form.current.reset();
      setReads(false);
    }
  };
  const number = (name, label) => html`
    <label>${label}<input name=${name} type="number" min="1" step="1" inputmode="numeric" defaultValue=${changed?.[name] ?? ""} /></label>
  `;
  // Rights that no box stands for, as box/*, stay.
  const ids = [...new Set([...models, ...(changed?.models ?? [])])];
  return html`
    <section aria-labelledby="key-form">
      <h2 id="key-form">${changed ? `Limits of ${changed.name}` : "New key"}</h2>
      ${!reads && html`<p class="sum">An empty field sets no limit.</p>`}
      <form class="fields" ref=${form} onSubmit=${submit}>
        ${!changed && html`<label>Name<input name="name" required autocomplete="off" spellcheck=${false} autocapitalize="off" /></label>`}
        ${!reads && Object.entries(NUMBERS).map(([name, label]) => number(name, label))}
        ${number("days", changed?.expires_at ? "Days until it expires (empty: as it is)" : "Days until it expires")}
        ${!changed &&
        html`<label class="check"><input type="checkbox" name="reads" checked=${reads} onChange=${(event) => setReads(event.target.checked)} />It only reads</label>`}
        ${!reads &&
        html`<fieldset>
          <legend>Models (none chosen: all)</legend>
          ${ids.map(
            (id) => html`
              <label class="check">
                <input type="checkbox" name="models" value=${id} defaultChecked=${changed?.models?.includes(id) ?? false} />${id}
              </label>
            `,
          )}
        </fieldset>`}
        <button class="primary">${changed ? "Change the limits" : "Make the key"}</button>
        ${changed && html`<button type="button" onClick=${onClose}>Leave it</button>`}
      </form>
    </section>
  `;
}
