// Asks for the admin key, or takes the code that `bulkhead page` has put into the address.

import { ask, shownKey } from "./api.js";
import { html, useEffect, useRef } from "./html.js";

const CODE = "#code=";

// Whether the address has a code. Behind the # it reaches no server and no log.
export const hasCode = () => location.hash.startsWith(CODE);

// Exchanges the code for a session, and takes it out of the address and the history. Returns why
// that failed, or null.
export async function signInByCode() {
  const code = location.hash.slice(CODE.length);
  history.replaceState(null, "", location.pathname);
  shownKey.forget();
  try {
    const response = await ask("/ui/session", { method: "POST", body: { code } });
    shownKey.set((await response.json()).key);
    return null;
  } catch (failure) {
    return failure;
  }
}

// The session ends at the gateway, too; another key stays what it is.
export async function signOut() {
  try {
    await ask("/ui/session", { method: "DELETE" });
  } catch {
    // It ends by itself, with the gateway or after a day.
  }
  shownKey.forget();
}

export function SignIn({ wrong, onKey }) {
  const input = useRef(null);
  useEffect(() => input.current.focus(), []);
  const submit = (event) => {
    event.preventDefault();
    shownKey.set(input.current.value.trim());
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
        <p id="where">
          It is in <code>admin.key</code> in the gateway's state folder; <code>bulkhead page</code> signs in without it.
          A key that only reads works, too.
        </p>
        ${wrong && html`<p class="error" role="alert">${wrong.message}</p>`}
        <button class="primary">Sign in</button>
      </form>
    </main>
  `;
}
