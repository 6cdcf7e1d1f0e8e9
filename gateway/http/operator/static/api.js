// Requests to the gateway, with the key of who is signed in: the admin key, one that reads, or the
// secret of a session.

const NAME = "bulkhead.admin-key";
// A response begins at once, or, of a model that others wait for, within seconds.
const ANSWER_MS = 60_000;

// In this tab alone, and gone with it.
export const shownKey = {
  get: () => sessionStorage.getItem(NAME),
  set: (secret) => sessionStorage.setItem(NAME, secret),
  forget: () => sessionStorage.removeItem(NAME),
};

// `status` is 0 if nothing answers. `message` is a sentence for people.
export class ApiError extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }

  get wantsKey() {
    return this.status === 401 || this.status === 403;
  }
}

// The response, if it is a good one. Throws ApiError, and AbortError for a request that was aborted.
export async function ask(path, { method = "GET", body, headers = {}, signal } = {}) {
  const secret = shownKey.get();
  const sent = { ...headers };
  if (secret) sent.authorization = `Bearer ${secret}`;
  if (body !== undefined) sent["content-type"] = "application/json";
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), ANSWER_MS);
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, late.signal]) : late.signal,
      cache: "no-store",
      credentials: "omit",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError("The gateway does not answer.");
  } finally {
    clearTimeout(timer);
  }
  if (!response.ok) throw await failure(response);
  return response;
}

export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

// A model's id may contain slashes, and they belong to the path.
export function modelPath(id, verb) {
  return `/admin/v1/models/${id.split("/").map(encodeURIComponent).join("/")}/${verb}`;
}

async function failure(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // Not ours, as a proxy's.
  }
  const message = error.message ?? `${response.status} ${response.statusText}`;
  return new ApiError(message, response.status, error.code);
}
