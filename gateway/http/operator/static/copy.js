// A button that copies a text.

import { html, useState } from "./html.js";

const SHOWN_MS = 2000;

// `what` is copied, in words.
export function Copy({ text, what }) {
  const [said, setSaid] = useState(null);
  const copy = async () => {
    setSaid((await copied(text)) ? "Copied" : "Not copied");
    setTimeout(() => setSaid(null), SHOWN_MS);
  };
  return html`
    <button type="button" class="quiet copy" aria-label=${said ? undefined : `Copy ${what}`} onClick=${copy}>
      ${said ?? "Copy"}
    </button>
  `;
}

async function copied(text) {
  try {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return true;
    }
  } catch {
    // The browser's owner forbids it: the other way may still be open.
  }
  return copiedByHand(text);
}

// `navigator.clipboard` is for pages of HTTPS and loopback alone.
function copiedByHand(text) {
  const before = document.activeElement;
  const area = document.createElement("textarea");
  area.className = "unseen";
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  before?.focus();
  return done;
}
