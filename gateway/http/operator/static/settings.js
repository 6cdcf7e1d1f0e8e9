// What goes with each request of the playground, kept in this browser.

import { html, useState } from "./html.js";

const NAME = "bulkhead.playground";

const DEFAULTS = {
  model: "",
  system: "",
  temperature: "",
  maxTokens: "",
  think: "",
  tools: "",
  toolChoice: "auto",
};

export function useSettings() {
  const [settings, setSettings] = useState(() => ({ ...DEFAULTS, ...kept() }));
  const change = (name, value) => {
    const next = { ...settings, [name]: value };
    setSettings(next);
    try {
      localStorage.setItem(NAME, JSON.stringify(next));
    } catch {
      // A private window may keep nothing; the settings hold until it is closed.
    }
  };
  return [settings, change];
}

function kept() {
  try {
    return JSON.parse(localStorage.getItem(NAME)) ?? {};
  } catch {
    return {};
  }
}

export function Settings({ settings, onChange }) {
  const bound = (name) => ({
    value: settings[name],
    onInput: (event) => onChange(name, event.target.value),
  });
  return html`
    <details class="settings">
      <summary>Settings</summary>
      <div class="fields">
        <label>System prompt<textarea rows="2" ...${bound("system")}></textarea></label>
        <label>Temperature<input type="number" min="0" max="2" step="0.1" placeholder="the model's" ...${bound("temperature")} /></label>
        <label>Most tokens<input type="number" min="1" step="1" placeholder="no limit" ...${bound("maxTokens")} /></label>
        <label>
          Reasoning
          <select ...${bound("think")}>
            <option value="">as the model does</option>
            <option value="yes">on</option>
            <option value="no">off</option>
          </select>
        </label>
        <label>Tools, as OpenAI's JSON list<textarea rows="2" spellcheck=${false} ...${bound("tools")}></textarea></label>
        <label>
          Use of tools
          <select ...${bound("toolChoice")}>
            <option value="auto">if the model wants to</option>
            <option value="required">always</option>
            <option value="none">never</option>
          </select>
        </label>
      </div>
    </details>
  `;
}
