// Asks for the admin key. It stays in this tab.

import { adminKey } from "./api.js";
import { html, useEffect, useRef } from "./html.js";

export function SignIn({ wrong, onKey }) {
  const input = useRef(null);
  useEffect(() => input.current.focus(), []);
  const submit = (event) => {
    event.preventDefault();
    adminKey.set(input.current.value.trim());
    onKey();
  };
  return html`
    <main class="sign-in">
      <h1><img src="/ui/icon.svg" alt="" width="32" height="32" /> Bulkhead</h1>
      <form onSubmit=${submit}>
        <input type="text" name="username" value="admin" autocomplete="username" hidden />
        <label>
          Admin key
          <input type="password" ref=${input} required autocomplete="current-password" spellcheck=${false}
            pattern=" *[!-~]+ *" title="letters, digits and signs, as they stand in the file"
            aria-describedby="where" aria-invalid=${wrong ? "true" : undefined} />
        </label>
        <p id="where">It is in <code>admin.key</code> in the gateway's state folder.</p>
        ${wrong && html`<p class="error" role="alert">${wrong.message}</p>`}
        <button class="primary">Sign in</button>
      </form>
    </main>
  `;
}
