// What the page's words mean, each a press away.

import { html } from "./html.js";

const MEANINGS = {
  Budget: "What all workers together may hold. It is set by memory.budget.",
  Promised: "What models may hold, whether they do or not.",
  Held: "What processes hold now.",
  Floor: "What a model keeps for as long as it is loaded: its weights, and one long sequence.",
  Floors: "What all loaded models keep for as long as they are loaded.",
  "Floors and loans": "What all loaded models may hold now.",
  "Other models": "All models but the 32 that were in memory last.",
  Lent: "What a model may hold beyond its floor. It is called back when another one needs it.",
  Wanted: "All that a model could use now.",
  Holds: "What the model's worker takes of the memory now.",
  Context: "The longest prompt and answer together, in tokens.",
  "Prompts kept": "Computed prompts in memory: a request that begins the same is answered sooner.",
  "Right guesses": "The share of guessed tokens that were right: each one saves a step, or a part of one.",
  Restarts: "How often a worker ended unexpectedly and another one took over.",
  Weights: "The models themselves.",
  Caches: "What sequences and kept prompts take.",
  "Other of workers": "Interpreters, libraries and buffers that MLX keeps for later.",
  Stranded: "What did not come back after a worker ended. It is taken off the budget.",
  "Spare worker": "A process that waits for the next model, so that its load is short.",
  Gateway: "This gateway's own process.",
  Others: "Everything else that runs on this machine.",
  Free: "What nobody holds.",
  "Left of the budget": "What no model was promised.",
};

const idOf = (name) => `means-${name.toLowerCase().replaceAll(/\W/g, "-")}`;

export function Term({ name }) {
  if (!(name in MEANINGS)) return name;
  return html`<button type="button" class="term" popovertarget=${idOf(name)}>${name}</button>`;
}

// Once for the whole page: many places use a word.
export function Meanings() {
  return Object.entries(MEANINGS).map(
    ([name, text]) => html`<p class="meaning" id=${idOf(name)} popover="auto"><strong>${name}.</strong> ${text}</p>`,
  );
}
