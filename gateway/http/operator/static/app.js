// The page as a whole: who is signed in, what is looked at, and the state of the connection.

import { shownKey } from "./api.js";
import { Connect } from "./connect.js";
import { html, render, useEffect, useRef, useState } from "./html.js";
import { nothingYet, watch } from "./live.js";
import { Keys } from "./keys.js";
import { Logs } from "./logs.js";
import { Overview } from "./overview.js";
import { Playground } from "./playground.js";
import { hasCode, SignIn, signInByCode, signOut } from "./sign_in.js";

const VIEWS = [
  ["overview", "Overview", Overview],
  ["playground", "Playground", Playground],
  ["connect", "Connect", Connect],
  ["logs", "Logs", Logs],
  ["keys", "Keys", Keys],
];
// What a key that reads may look at.
const READ = ["overview", "keys"];

const SAID = {
  connecting: "connecting…",
  live: "live",
  lost: "connection lost, trying again…",
};

// `failure` is why the code in the address did not sign in, or null.
function App({ failure }) {
  const [live, setLive] = useState(nothingYet);
  const [attempt, setAttempt] = useState(0);
  const [view, argument] = useHash();
  const heading = useRef(null);

  useEffect(() => {
    setLive(nothingYet);
    return watch(setLive);
  }, [attempt]);

  const views = VIEWS.filter(([name]) => !live.reads || READ.includes(name));
  const found = views.find(([name]) => name === view) ?? VIEWS[0];
  const [name, title, View] = found;
  useEffect(() => {
    document.title = `${title} · Bulkhead`;
  }, [title]);

  const leave = async () => {
    await signOut();
    setAttempt(attempt + 1);
  };
  if (live.connection === "refused") {
    const wrong = shownKey.get() === null ? attempt === 0 && failure : live.refusal;
    return html`<${SignIn} wrong=${wrong} onKey=${() => setAttempt(attempt + 1)} />`;
  }
  // The hash says which view is shown, so this link can't use it.
  const skip = (event) => {
    event.preventDefault();
    heading.current.focus();
  };
  return html`
    <a class="skip" href="#content" onClick=${skip}>Skip to the content</a>
    <header>
      <strong class="brand"><img src="/ui/icon.svg" alt="" width="24" height="24" /> Bulkhead</strong>
      <nav aria-label="Views">
        ${views.map(
          ([each, label]) =>
            html`<a href=${`#${each}`} aria-current=${each === name ? "page" : undefined}>${label}</a>`,
        )}
      </nav>
      <p class=${`connection ${live.connection}`} role="status">
        ${SAID[live.connection]}
        ${live.status && html`<span class="version"> · ${live.status.version}</span>`}
      </p>
      ${shownKey.get() && html`<button class="quiet" onClick=${leave}>Sign out</button>`}
    </header>
    <main id="content" class=${[View === Playground && "filled", live.reads && "reads"].filter(Boolean).join(" ")}>
      <h1 tabindex="-1" ref=${heading}>${title}</h1>
      ${live.status
        ? html`
            ${View !== Playground && html`<${View} key=${name} live=${live} argument=${argument} />`}
            ${/* Always there: an answer goes on while something else is looked at. */ ""}
            ${!live.reads && html`<div hidden=${View !== Playground}><${Playground} live=${live} wanted=${View === Playground ? argument : ""} /></div>`}
          `
        : html`<p class="empty">Waiting for the gateway…</p>`}
    </main>
  `;
}

// #logs/owner/name: the view, and what of it.
function useHash() {
  const read = () => decodeURIComponent(location.hash.slice(1));
  const [hash, setHash] = useState(read);
  useEffect(() => {
    const onChange = () => (hasCode() ? location.reload() : setHash(read()));
    addEventListener("hashchange", onChange);
    return () => removeEventListener("hashchange", onChange);
  }, []);
  const slash = hash.indexOf("/");
  return slash < 0 ? [hash, ""] : [hash.slice(0, slash), hash.slice(slash + 1)];
}

const failure = hasCode() ? await signInByCode() : null;
const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} failure=${failure} />`, root);
