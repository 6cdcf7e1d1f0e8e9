// What a model's workers print, or the gateway itself, as it comes.

import { ApiError, ask, modelPath } from "./api.js";
import { clock } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { messages } from "./server_sent_events.js";
import { nothingSifted, passes, Sift } from "./sift.js";
import { rest, sentence } from "./told.js";

const FIRST_LINES = 200;
const MOST_LINES = 2000;
const PAUSE_MS = 1000;
const DRAW_MS = 50;

export function Logs({ live, argument }) {
  const [lines, setLines] = useState([]);
  const [refusal, setRefusal] = useState(null);
  const [sift, setSift] = useState(nothingSifted);
  const box = useRef(null);
  const atEnd = useRef(true);
  const ids = live.status.models.map((each) => each.id);

  useEffect(() => follow(argument, setLines, setRefusal), [argument]);
  useEffect(() => {
    if (atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, sift]);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    atEnd.current = scrollHeight - scrollTop - clientHeight < 40;
  };
  const choose = (event) => {
    location.hash = event.target.value ? `logs/${event.target.value}` : "logs";
  };
  const shown = lines.filter(({ level, text }) => passes(sift, level, text));
  return html`
    <label class="choice">
      Log of
      <select value=${argument} onChange=${choose}>
        <option value="">the gateway</option>
        ${ids.map((id) => html`<option value=${id}>${id}</option>`)}
      </select>
    </label>
    <${Sift} sift=${sift} onSift=${setSift} what="the log" />
    ${refusal && html`<p class="error" role="alert">${refusal}</p>`}
    <pre class="log" ref=${box} onScroll=${onScroll} tabindex="0" role="region" aria-label="Log">${
      lines.length === 0 ? "Nothing was written yet." : shown.map(({ text }) => text).join("\n") || "No line is like that."
    }</pre>
  `;
}

// Goes on until the function that it returns is called.
function follow(id, setLines, setRefusal) {
  const over = new AbortController();
  const path = id ? modelPath(id, "logs") : "/admin/v1/logs";
  let fresh = [];
  // Two hundred lines are drawn once, not two hundred times.
  const draw = () => {
    const drawn = fresh;
    fresh = [];
    if (!over.signal.aborted) setLines((known) => [...known, ...drawn].slice(-MOST_LINES));
  };
  const run = async () => {
    while (!over.signal.aborted) {
      try {
        const response = await ask(`${path}?follow=1&lines=${FIRST_LINES}`, { signal: over.signal });
        setLines([]);
        for await (const { data } of messages(response)) {
          if (data === null) continue;
          if (fresh.push(readable(data)) === 1) setTimeout(draw, DRAW_MS);
        }
      } catch (error) {
        if (over.signal.aborted) return;
        if (error instanceof ApiError && error.status) {
          setRefusal(error.message);
          return;
        }
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  };
  setLines([]);
  setRefusal(null);
  run();
  return () => over.abort();
}

// The keys whose values the message doesn't have.
function unsaid(told, message) {
  return Object.fromEntries(Object.entries(told).filter(([, value]) => !message.includes(String(value))));
}

// { level, text }: a line of JSON as a sentence; any other as it is.
function readable(line) {
  let told;
  try {
    told = JSON.parse(line);
  } catch {
    return { text: line };
  }
  if (told === null || typeof told !== "object" || !told.time) return { text: line };
  const { message, ...others } = told;
  const text = message === undefined ? sentence(told) : [message, rest(unsaid(others, message))].filter(Boolean).join(" · ");
  return { level: told.level, text: `${clock(Date.parse(told.time) / 1000)} ${told.level}: ${text}` };
}
