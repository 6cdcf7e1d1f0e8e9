// The last hour, or the last day: memory by model, and how fast answers came.

import { askJson } from "./api.js";
import { bytes, count, counted, exact, rate as perSecond } from "./format.js";
import { html, useEffect, useMemo, useState } from "./html.js";
import { happened, held, numbers, present, rate, rows, stacked, summed, time, told, toldNow } from "./history_numbers.js";
import { kindOf } from "./memory_shares.js";
import { Plot } from "./plot.js";
import { Term } from "./terms.js";

const SPANS = [["hour", "Last hour"], ["day", "Last day"]];
const EVERY_MS = { hour: 10_000, day: 60_000 };
const LAST = { hour: "in the last 10 s", day: "in the last 2 min" };
const MEMORY_PX = 312;
const SMALL_PX = 92;

// { answer, span, onSpan }: the gateway's answer, or null, and the span that is looked at.
export function useHistory() {
  const [span, onSpan] = useState("hour");
  const [answer, setAnswer] = useState(null);
  useEffect(() => follow(span, setAnswer), [span]);
  return { answer, span, onSpan };
}

// `colours` are those of the models, by id; `lost` is the time since when the status is no more than
// what it was, or null.
export function History({ answer, span, onSpan, status, colours, lost }) {
  // The time of the step that is looked at, which stays as others come; null is now.
  const [moment, setMoment] = useState(null);
  // Order and colours of models are all that the plots take of what comes anew each second.
  const order = JSON.stringify([status.models.map((each) => each.id), ...colours]);
  const found = useMemo(() => answer && numbers(answer, status, colours), [answer, order]);
  const now = present(status);
  const at = moment === null || !found?.times.length ? null : Math.max(0, found.times.findLastIndex((each) => each <= moment));
  const setAt = (step) => setMoment(found.times[step] ?? null);
  const choose = (next) => {
    onSpan(next);
    setMoment(null);
  };
  return html`
    <section class="history" aria-labelledby="history">
      <div class="head">
        <h2 id="history">${SPANS.find(([each]) => each === span)[1]}</h2>
        <div class="switch" role="group" aria-label="Span">
          ${SPANS.map(
            ([each, label]) =>
              html`<button aria-pressed=${each === span} aria-label=${label} onClick=${() => choose(each)}>${each}</button>`,
          )}
        </div>
        ${found && html`<${Moment} found=${found} now=${now} lost=${lost} at=${at} onAt=${setAt} />`}
      </div>
      ${found ? html`<${Plots} found=${found} now=${now} colours=${colours} at=${at} onAt=${setAt} />` : html`<p class="empty">Waiting for the history…</p>`}
    </section>
  `;
}

// Asks again and again, until the function that it returns is called.
function follow(span, tell) {
  let over = false;
  const look = async () => {
    if (document.hidden) return;
    try {
      const answer = await askJson(`/admin/v1/history?span=${span}`);
      if (!over) tell(answer);
    } catch {
      // The head of the page says that the gateway doesn't answer. What is known stays.
    }
  };
  look();
  const timer = setInterval(look, EVERY_MS[span]);
  document.addEventListener("visibilitychange", look);
  return () => {
    over = true;
    clearInterval(timer);
    document.removeEventListener("visibilitychange", look);
  };
}

// The step that is looked at: by its place on the line, whose end is now, or by a pointer over a plot.
function Moment({ found, now, lost, at, onAt }) {
  const end = found.times.length;
  return html`
    <label class="moment">
      <span class="unseen">Moment</span>
      <input type="range" min="0" max=${end} value=${at ?? end} aria-valuetext=${at === null ? toldNow(now) : told(found, at)}
        onInput=${(event) => onAt(Number(event.target.value))} />
      <output>${end === 0 ? "recording begins" : at === null ? (lost ?? "now") : time(found, at)}</output>
    </label>
  `;
}

function Plots({ found, now, colours, at, onAt }) {
  const drawn = useMemo(() => curves(found), [found]);
  const last = found.times.length - 1;
  const shown = at ?? last;
  const common = { span: found.span, times: found.times, at, onAt };
  const here = (values) => values[shown] ?? null;
  // What only a step has: at the end it is the last one that has ended.
  const ofStep = (text) => (text && at === null ? `${text} ${LAST[found.span]}` : text);
  const figures = at === null ? now : { held: here(drawn.held), rate: here(drawn.rates), waiting: here(found.waiting) };
  const first = here(found.first_token_s);
  const worst = first === null ? "" : `worst ${exact(here(found.worst_first_token_s))}`;
  const marks = shown < 0 ? "" : happened(found, shown);
  const legend = at === null ? presentLegend(drawn, now, colours) : drawn.legend.map((each) => ({ ...each, value: here(each.values) }));
  return html`
    <div class="plots">
      <figure>
        <figcaption>
          <h3>Memory held</h3>
          <strong>${bytes(figures.held)}</strong>
          <span class="bad">${ofStep(marks)}</span>
        </figcaption>
        <${Plot} ...${common} label=${drawn.memoryTold} height=${MEMORY_PX} series=${drawn.memory} marks=${drawn.marks} unit=${bytes} />
        <dl class="key">
          ${legend.map(
            ({ kind, label, value, line }) => html`
              <div>
                <dt><span class=${line ? `stroke ${line} ${kind}` : `swatch ${kind}`}></span><${Term} name=${label} /></dt>
                <dd>${bytes(value)}</dd>
              </div>
            `,
          )}
          <div><dt><span class="glyph busy">▼</span>eviction</dt></div>
          <div><dt><span class="glyph bad">✕</span>death</dt></div>
        </dl>
      </figure>
      <div class="small">
        <${Small} title="Tokens a second" value=${perSecond(figures.rate)}>
          <${Plot} ...${common} label=${drawn.ratesTold} height=${SMALL_PX} series=${drawn.tokens} unit=${whole} />
        <//>
        <${Small} title="Waiting requests" value=${count(figures.waiting)}
          more=${ofStep(here(found.refusals) ? counted(here(found.refusals), "refusal") : "")}>
          <${Plot} ...${common} label=${drawn.waitingTold} height=${SMALL_PX} series=${drawn.waiting} marks=${drawn.refusals} unit=${whole} />
        <//>
        <${Small} title="First token" value=${exact(first)}
          more=${ofStep(worst)}>
          <${Plot} ...${common} label=${drawn.firstTold} height=${SMALL_PX} series=${drawn.first} unit=${seconds} />
        <//>
      </div>
    </div>
    <${Table} found=${found} />
  `;
}

function Small({ title, value, more, children }) {
  return html`
    <figure>
      <figcaption><h3>${title}</h3><strong>${value}</strong><span>${more}</span></figcaption>
      ${children}
    </figure>
  `;
}

// There is no half request, nor half a token.
const whole = (value) => (Number.isInteger(value) ? count(value) : "");
const seconds = (value) => (value === 0 ? "0" : exact(value));

function curves(found) {
  const memory = stacked(found, "held_bytes");
  const tokens = stacked(found, "generated_tokens", found.step).filter((each, at) => found.models[at].generated_tokens.some(Boolean));
  const floors = summed(found, "floor_bytes");
  const promised = summed(found, "floor_bytes", "lent_bytes");
  const allHeld = held(found);
  const rates = rate(found);
  const { budget_bytes: budget, waiting, worst_first_token_s: worst, first_token_s: first, evictions, deaths, refusals } = found;
  const lines = [
    { kind: "of-front", label: "Budget", values: budget, line: "solid" },
    { kind: "of-front", label: "Floors and loans", values: promised, line: "dotted", dash: [2, 3] },
    { kind: "of-front", label: "Floors", values: floors, line: "dashed", dash: [8, 4] },
  ];
  const own = new Map(found.models.map((each) => [each.id, each.held_bytes]));
  const areas = memory.map(({ id, kind, values }) => ({ kind, label: id, values, own: own.get(id) ?? found.spare_bytes, area: true }));
  const most = (values) => Math.max(0, ...values.filter((each) => each !== null));
  const sum = (values) => values.reduce((all, each) => all + each, 0);
  return {
    held: allHeld,
    rates,
    memory: [...lines, ...areas],
    legend: [...areas.filter((each) => each.own.some(Boolean)).map((each) => ({ ...each, values: each.own })), ...lines],
    marks: [
      { values: evictions, kind: "of-busy" },
      { values: deaths, kind: "of-bad", cross: true },
    ],
    refusals: [{ values: refusals, kind: "of-bad" }],
    tokens: tokens.map((each) => ({ ...each, area: true })),
    waiting: [{ values: waiting, kind: "of-accent", area: true }],
    first: [
      { values: first, kind: "of-accent" },
      { values: worst, kind: "of-busy" },
    ],
    memoryTold: `Memory: ${bytes(most(allHeld))} held at most, of ${bytes(budget.at(-1))}; ${counted(sum(evictions), "eviction")}, ${counted(sum(deaths), "death")}`,
    ratesTold: `Tokens a second: ${count(Math.round(most(rates)))} at most`,
    waitingTold: `Waiting requests: ${count(most(waiting))} at most; ${counted(sum(refusals), "refusal")}`,
    firstTold: `First token: ${exact(most(worst))} at most`,
  };
}

// The models of this gateway that are drawn, or hold something, with what they hold now.
function presentLegend({ legend }, { own, spare, budget, promised, floors }, colours) {
  const drawn = new Set(legend.map((each) => each.label));
  const lines = { Budget: budget, "Floors and loans": promised, Floors: floors };
  const parts = [...own].map(([id, value]) => ({ kind: kindOf(colours.get(id)), label: id, value }));
  parts.push({ kind: "spare", label: "Spare worker", value: spare });
  return [
    ...parts.filter(({ label, value }) => value > 0 || drawn.has(label)),
    ...legend.filter((each) => each.line).map((each) => ({ ...each, value: lines[each.label] })),
  ];
}

function Table({ found }) {
  return html`
    <details class="as-table">
      <summary>As a table</summary>
      <div class="scroll" tabindex="0" role="region" aria-label="The history as a table">
        <table>
          <thead>
            <tr>
              ${["From", "Most held", "Budget", "Tokens/s", "Most waiting", "Worst first token", "Evictions", "Deaths", "Refusals"].map(
                (each) => html`<th scope="col">${each}</th>`,
              )}
            </tr>
          </thead>
          <tbody>
            ${rows(found).map(
              (row) => html`
                <tr>
                  <th scope="row">${row.time}</th>
                  ${[
                    bytes(row.held), bytes(row.budget), perSecond(row.rate), count(row.waiting), exact(row.worst),
                    count(row.evictions), count(row.deaths), count(row.refusals),
                  ].map((value) => html`<td class="number">${value}</td>`)}
                </tr>
              `,
            )}
          </tbody>
        </table>
      </div>
    </details>
  `;
}
