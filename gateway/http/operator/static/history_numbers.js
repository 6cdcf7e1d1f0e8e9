// What the plots of the history show, from the gateway's columns. No drawing.

import { bytes, clock, counted, exact, rate as perSecond, weekday } from "./format.js";
import { heldOf, kindOf, sum } from "./memory_shares.js";

const MARKS = { evictions: "eviction", deaths: "death", refusals: "refusal" };
// A table of all steps would be read by nobody.
const ROWS = 12;

// { span, step, times, models, ...columns }: `models` are those with values, in the order of the
// status, each with its colour's class; those that are summed come last.
export function numbers(answer, status, colours) {
  const { span, columns, marks } = answer;
  const { step_s: step, begins_at: begin, models, others, ...whole } = columns;
  const times = whole.budget_bytes.map((_, at) => begin + at * step);
  const shown = shownModels(answer, status).map((id) => ({ id, kind: kindOf(colours.get(id)), ...models[id] }));
  return {
    span,
    step,
    times,
    marks,
    ...whole,
    models: [...shown, { id: "Other models", kind: "others", ...others }].filter(hasValues),
  };
}

// Ids of the models with values, in the order of the status; those that this gateway hasn't come last.
export function shownModels({ columns: { models } }, status) {
  const ids = status.models.map((each) => each.id);
  const place = (id) => (ids.includes(id) ? ids.indexOf(id) : ids.length);
  return Object.keys(models)
    .filter((id) => hasValues(models[id]))
    .toSorted((one, other) => place(one) - place(other));
}

// What is so now, as a step's figures: `own` is what each model of this gateway holds.
export function present({ models, memory }) {
  const floors = sum(models, "floor_bytes");
  const own = new Map(models.map((each) => [each.id, heldOf(each)]));
  return {
    own,
    spare: memory.spare_bytes ?? 0,
    held: [...own.values()].reduce((all, each) => all + each, memory.spare_bytes ?? 0),
    budget: memory.budget_bytes,
    floors,
    promised: floors + sum(models, "lent_bytes"),
    rate: models.reduce((all, each) => all + (each.worker?.tokens_per_s ?? 0), 0),
    waiting: sum(models, "queue_depth"),
  };
}

const hasValues = (model) => [model.held_bytes, model.floor_bytes, model.generated_tokens].some((column) => column.some(Boolean));

// Sums from the first model on, so that the areas stand on each other: [{ id, kind, values }].
export function stacked({ models, spare_bytes: spare }, column, scale = 1) {
  const parts = models.map((each) => ({ ...each, own: each[column] }));
  if (column === "held_bytes" && spare.some(Boolean)) {
    parts.push({ id: "Spare worker", kind: "spare", own: spare });
  }
  let below = spare.map(() => 0);
  return parts.map(({ id, kind, own }) => {
    below = own.map((value, at) => (value === null ? null : below[at] + value / scale));
    return { id, kind, values: below };
  });
}

export function summed({ models, budget_bytes: known }, ...columns) {
  return known.map((there, at) =>
    there === null ? null : columns.reduce((sum, name) => models.reduce((all, each) => all + each[name][at], sum), 0),
  );
}

export function held(found) {
  return stacked(found, "held_bytes").at(-1)?.values ?? found.times.map(() => 0);
}

export function rate(found) {
  return summed(found, "generated_tokens").map((each) => (each === null ? null : each / found.step));
}

// "2 evictions (coder, writer), 1 death (coder)" in a step; nothing if nothing happened.
export function happened({ marks, times, step, ...found }, at) {
  return Object.entries(MARKS)
    .filter(([column]) => found[column][at])
    .map(([column, kind]) => {
      const named = marks.filter((each) => each.kind === kind && each.at >= times[at] && each.at < times[at] + step);
      const models = [...new Set(named.map((each) => each.model))];
      return counted(found[column][at], kind) + (models.length ? ` (${models.join(", ")})` : "");
    })
    .join(", ");
}

export function time({ span, times }, at) {
  return span === "day" ? weekday(times[at]) : clock(times[at]);
}

// A step as a sentence.
export function told(found, at) {
  if (found.budget_bytes[at] === null) return `${time(found, at)}: nothing is known.`;
  const facts = [
    `${bytes(held(found)[at])} held of ${bytes(found.budget_bytes[at])}`,
    `${perSecond(rate(found)[at])} tokens/s`,
    `${found.waiting[at]} waiting`,
    found.first_token_s[at] !== null && `first token ${exact(found.first_token_s[at])}, worst ${exact(found.worst_first_token_s[at])}`,
    happened(found, at),
  ];
  return `${time(found, at)}: ${facts.filter(Boolean).join("; ")}.`;
}

export const toldNow = (now) =>
  `Now: ${bytes(now.held)} held of ${bytes(now.budget)}; ${perSecond(now.rate)} tokens/s; ${now.waiting} waiting.`;

// The whole span in equal parts, each with what matters of it.
export function rows(found) {
  const { times, waiting, worst_first_token_s: worst, budget_bytes: budget } = found;
  const size = Math.ceil(times.length / ROWS);
  const allHeld = held(found);
  const rates = rate(found);
  return Array.from({ length: Math.ceil(times.length / size) }, (_, row) => {
    const part = (values) => values.slice(row * size, (row + 1) * size).filter((each) => each !== null);
    const known = part(rates);
    const sum = (column) => part(found[column]).reduce((all, each) => all + each, 0);
    return {
      time: time(found, row * size),
      held: known.length ? Math.max(...part(allHeld)) : null,
      budget: part(budget).at(-1) ?? null,
      rate: known.length ? known.reduce((all, each) => all + each, 0) / known.length : null,
      waiting: known.length ? Math.max(...part(waiting)) : null,
      worst: part(worst).length ? Math.max(...part(worst)) : null,
      evictions: sum("evictions"),
      deaths: sum("deaths"),
      refusals: sum("refusals"),
    };
  });
}
