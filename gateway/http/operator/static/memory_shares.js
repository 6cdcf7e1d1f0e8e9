// Who has which part of the memory, as the status tells it. No drawing.

const COLOURS = 6;

// The colours of models that are shown, by number: each keeps what it had `before`, and two are
// alike only if more are shown than there are colours.
export function coloured(before, ids) {
  const found = new Map();
  const uses = Array(COLOURS).fill(0);
  const give = (id, colour) => {
    found.set(id, colour);
    uses[colour] += 1;
  };
  const keeps = (id) => before.has(id) && (uses[before.get(id)] === 0 || ids.length > COLOURS);
  for (const id of ids) if (keeps(id)) give(id, before.get(id));
  for (const id of ids) if (!found.has(id)) give(id, uses.indexOf(Math.min(...uses)));
  return found;
}

// The class with a colour.
export const kindOf = (colour) => `model-${colour}`;

export const heldOf = (model) => model.worker?.footprint_bytes ?? 0;
const promisedTo = (model) => (model.floor_bytes ?? 0) + (model.lent_bytes ?? 0) + (model.returning_bytes ?? 0);

// Models that have a part of the memory now.
export const sharers = ({ models }) => models.filter((each) => heldOf(each) + promisedTo(each) > 0).map((each) => each.id);

// What processes hold: [{ kind, label, bytes }], from left to right; what the workers may use comes
// first, so that the budget is a line in it: model by model, or the weights, caches and buffers of all.
export function held(status, byModel, colours) {
  const { memory, models } = status;
  const onCard = memory.card_total_bytes !== null;
  const workers = models.map((each) => each.worker).filter((each) => each !== null);
  const weights = sum(workers, "weight_bytes");
  const caches = sum(workers, "cache_bytes");
  const footprint = sum(workers, "footprint_bytes");
  const parts = byModel
    ? ofModels(models, heldOf, colours)
    : [
        { kind: "weights", label: "Weights", bytes: weights },
        { kind: "caches", label: "Caches", bytes: caches },
        { kind: "buffers", label: "Other of workers", bytes: Math.max(0, footprint - weights - caches) },
      ];
  parts.push({ kind: "stranded", label: "Stranded", bytes: memory.stranded_bytes ?? 0 });
  if (onCard) {
    const available = memory.card_available_bytes ?? 0;
    const rest = total(status) - available - parts.reduce((all, each) => all + each.bytes, 0);
    parts.push({ kind: "free", label: "Free", bytes: available });
    parts.push({ kind: "others", label: "Others", bytes: Math.max(0, rest) });
    return parts;
  }
  parts.push({ kind: "spare", label: "Spare worker", bytes: memory.spare_bytes ?? 0 });
  parts.push({ kind: "free", label: "Free", bytes: memory.available_bytes });
  parts.push({ kind: "gateway", label: "Gateway", bytes: memory.gateway_bytes ?? 0 });
  parts.push({ kind: "others", label: "Others", bytes: memory.other_bytes ?? 0 });
  return parts;
}

// What models were promised, of the same whole.
export function promised(status, byModel, colours) {
  const floors = sum(status.models, "floor_bytes");
  const lent = sum(status.models, "lent_bytes") + sum(status.models, "returning_bytes");
  const { budget_bytes: budget, granted_bytes: granted } = status.memory;
  const ofAll = [
    { kind: "floor", label: "Floor", bytes: floors },
    { kind: "lent", label: "Lent", bytes: lent },
  ];
  return [
    ...(byModel ? ofModels(status.models, promisedTo, colours) : ofAll),
    { kind: "spare", label: "Spare worker", bytes: Math.max(0, granted - floors - lent) },
    { kind: "unpromised", label: "Left of the budget", bytes: Math.max(0, (budget ?? 0) - granted) },
  ];
}

// A model has one colour in all tracks and plots.
function ofModels(models, bytesOf, colours) {
  return models
    .filter((each) => bytesOf(each) > 0)
    .map((each) => ({ kind: kindOf(colours.get(each.id)), label: each.id, bytes: bytesOf(each) }));
}

export function total(status) {
  return status.memory.card_total_bytes ?? status.memory.total_bytes;
}

export function sum(all, field) {
  return all.reduce((bytes, each) => bytes + (each[field] ?? 0), 0);
}
