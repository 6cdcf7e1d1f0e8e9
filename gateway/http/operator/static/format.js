// Numbers and times as people read them.

// As `bulkhead status` has them: decimal units.
export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (count >= 999.5 && at < units.length - 1) {
    count /= 1000;
    at += 1;
  }
  return `${count < 9.95 && at > 0 ? count.toFixed(1) : Math.round(count)} ${units[at]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds / 60) % 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds / 3600) % 24)} h`;
}

// Also of what takes less than a second.
export function exact(seconds) {
  if (seconds === null || seconds === undefined || seconds >= 1) return duration(seconds);
  return seconds > 0 && seconds < 0.0005 ? "<1 ms" : `${Math.round(1000 * seconds)} ms`;
}

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour12: false });
}

// A moment of the last day.
export function weekday(at) {
  return new Date(at * 1000).toLocaleString([], { weekday: "short", hour: "2-digit", minute: "2-digit", hour12: false });
}

export function day(at) {
  return at === null || at === undefined ? "–" : new Date(at * 1000).toLocaleString();
}

export function count(number) {
  return number === null || number === undefined ? "–" : number.toLocaleString("en-US");
}

// Of tokens a second.
export function rate(number) {
  if (number === null || number === undefined) return "–";
  return number > 0 && number < 9.95 ? number.toFixed(1) : count(Math.round(number));
}

export function share(rate) {
  return rate === null ? "–" : `${Math.round(100 * rate)}%`;
}

export function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

// What a check has found, in words.
export function findingsText({ verdict, faults, warnings }) {
  if (verdict === "ok") return "nothing wrong was found";
  if (verdict === "incomplete") return "nothing wrong was found, but not everything was checked";
  return `${counted(faults, "fault")}, ${counted(warnings, "warning")}`;
}
