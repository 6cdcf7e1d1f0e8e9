// How a model is, in words.

// Some reasons begin with the state: "loading: 1.2 GB of 3.2 GB".
export function condition({ state, reason }) {
  if (reason?.startsWith(state)) return `the model is ${reason}`;
  const is = state === "backoff" ? "the model waits for its next start" : `the model is ${state}`;
  return reason ? `${is}, ${reason}` : is;
}
