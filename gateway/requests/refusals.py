"""Why requests are turned away, in sentences for clients and operators."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import UTC, datetime

from gateway.requests.progress import SUSPECT_TOKENS
from gateway.system.refusal import Refusal
from protocol.life import Ability
from protocol.messages import MAX_GATEWAY_FRAME_BYTES


def queue_full(model_id: str, depth: int, retry_after_s: int) -> Refusal:
    return Refusal(
        "queue_full",
        f"{depth} requests wait for {model_id!r} already, as many as its queue holds: try again "
        "later.",
        retry_after_s=retry_after_s,
    )


def too_large() -> Refusal:
    return Refusal(
        "request_too_large",
        f"The prompt is larger than {MAX_GATEWAY_FRAME_BYTES >> 20} MiB, the most that a model is "
        "told at once: shorten it.",
    )


def too_late(model_id: str, deadline_s: float, description: str) -> Refusal:
    """`description` is the state of the model, as `Condition.describe` writes it."""
    return Refusal(
        "deadline_exceeded",
        f"The request waited for {model_id!r} until its deadline of {deadline_s:g} s passed; "
        f"X-Deadline-S sets another. The model {description}.",
        # The client's deadline has passed, and another try might wait for as long again.
        lasting=True,
    )


def died_twice(model_id: str) -> Refusal:
    return _deadly(model_id, "was ended")


def quarantined(model_id: str, left_s: float) -> Refusal:
    """For a request that killed workers and is sent again."""
    return _deadly(model_id, f"is kept out for another {left_s:.0f} s")


def model_changed(model_id: str) -> Refusal:
    return Refusal(
        "model_unavailable",
        f"The files of {model_id!r} changed while the answer was interrupted, and the rest would "
        "come from another model: send the request again.",
    )


def unable(model_id: str, wanted: Ability, abilities: Collection[Ability]) -> Refusal:
    """For a request that the model can't do."""
    if wanted == "embedding" and "token_vectors" in abilities:
        return Refusal(
            "invalid_request_error",
            f"{model_id!r} makes one vector of each token, and no vector of a text: /v1/rerank "
            "takes it, and compares a query with documents.",
            param="model",
        )
    sentences: dict[Ability, str] = {
        "text": "is made for vectors and writes no text: it serves /v1/embeddings or /v1/rerank.",
        "embedding": "makes no embeddings of texts.",
        "score": "can't compare texts.",
    }
    return Refusal("invalid_request_error", f"{model_id!r} {sentences[wanted]}", param="model")


def only_passes(model_id: str) -> Refusal:
    """For a request that a command's server can't get, as it would have to be written anew."""
    return Refusal(
        "invalid_request_error",
        f"{model_id!r} is a server of its own, which gets requests as they come: it can't be asked "
        "in this way. docs/other-servers.md has the paths on which it can.",
        param="model",
    )


def elsewhere(model_id: str) -> Refusal:
    """For a request that would have to be written anew for an upstream, or an order."""
    return Refusal(
        "invalid_request_error",
        f"{model_id!r} is a model of an upstream, which gets requests as they come: it can't be "
        "asked or steered in this way. docs/other-servers.md has the paths on which it can.",
        param="model",
    )


def passes_nothing(model_id: str) -> Refusal:
    """For a path on which only the servers of commands answer."""
    return Refusal(
        "invalid_request_error",
        f"{model_id!r} is no model with a command, and only these answer on this path.",
        param="model",
    )


def broke_off(model_id: str) -> Refusal:
    """For a request that ran when the server of a command ended."""
    return Refusal(
        "bad_gateway",
        f"The server of {model_id!r} ended before its answer was complete, and the rest is lost: "
        "send the request again.",
    )


def _deadly(model_id: str, what: str) -> Refusal:
    return Refusal(
        "worker_crashed",
        f"Two workers of {model_id!r} died within {SUSPECT_TOKENS} tokens of this request, so it "
        f"{what}: change it before you send it again.",
        lasting=True,
    )


def invalid_output(model_id: str, *, fresh: bool) -> Refusal:
    """`fresh`: the request was tried in a fresh worker after another one."""
    another = "again in a fresh worker" if fresh else "in a worker that was fresh"
    return Refusal(
        "model_output_invalid",
        f"The numbers from which {model_id!r} draws its answer weren't finite, or were all the "
        f"same. The answer was computed again without cached blocks, and {another}, with "
        f"unquantized caches and without guesses: `bulkhead check {model_id}` looks for the fault.",
        lasting=True,
    )


def held(model_id: str) -> Refusal:
    return Refusal(
        "model_unavailable",
        f"{model_id!r} was unloaded by the operator and is held: "
        f"`bulkhead load {model_id}` makes it available again.",
        lasting=True,
    )


def removed(model_id: str) -> Refusal:
    return Refusal(
        "model_unavailable",
        f"{model_id!r} was taken out of the configuration.",
        lasting=True,
    )


def shutting_down() -> Refusal:
    return Refusal(
        "shutting_down", "The gateway is shutting down: try again in a moment.", retry_after_s=10
    )


def operators_only(model_id: str, state: str) -> Refusal:
    return Refusal(
        "model_unavailable",
        f"{model_id!r} is {state}, and only an operator loads it: `bulkhead load {model_id}`.",
        lasting=True,
    )


def unavailable(
    model_id: str, state: str, reason: str | None, *, retry_after_s: int | None
) -> Refusal:
    """`retry_after_s` None: the gateway doesn't load the model again by itself."""
    remedy = f" `bulkhead load {model_id}` tries again." if retry_after_s is None else ""
    what = "has failed" if state == "failed" else f"is {state}"
    return Refusal(
        "model_unavailable",
        f"{model_id!r} {what}: {(reason or state).rstrip('.')}.{remedy}",
        retry_after_s=retry_after_s,
        lasting=retry_after_s is None,
    )


def load_failed(model_id: str, reason: str, *, retry_after_s: int | None) -> Refusal:
    """`retry_after_s` None: the next load would fail as well."""
    return Refusal(
        "model_unavailable",
        f"{model_id!r} can't be loaded: {reason}",
        retry_after_s=retry_after_s,
        lasting=retry_after_s is None,
    )


def foreign_worker(model_id: str, reason: str) -> Refusal:
    return Refusal(
        "model_unavailable",
        f"{model_id!r} can't be loaded: its worker isn't of this gateway's version ({reason}). The "
        "installation has changed since the gateway started: restart the gateway, with `bulkhead "
        "service restart` if it is a service.",
        lasting=True,
    )


def load_too_slow(model_id: str, reason: str) -> Refusal:
    return Refusal("load_timeout", f"{model_id!r}: {reason}.", lasting=True)


def lost(
    model_id: str,
    reason: str,
    status: str | None,
    tail: list[str],
    deaths: int,
    next_attempt_s: float | None,
) -> str:
    """Why there is no worker, in a text for an operator who knows nothing else.

    `status` None: the exit status is in the reason. `next_attempt_s` counts from now; None: there
    is no next attempt, or it comes at once.
    """
    text = f"the worker was lost: {reason}"
    if status is not None:
        text += f" ({status})"
    if tail:
        # Python's own report of a fatal error ends with lists of modules.
        fatal = (line for line in reversed(tail) if line.startswith("Fatal Python error"))
        text += f". Its last line was: {next(fatal, tail[-1])}"
    if next_attempt_s is None:
        return text
    at = datetime.fromtimestamp(time.time() + next_attempt_s, UTC)
    return (
        f"{text}. It died {deaths} times. The next attempt comes at {at:%Y-%m-%d %H:%M:%S} UTC, or "
        f"with `bulkhead load {model_id}`"
    )


def being_replaced() -> Refusal:
    return Refusal(
        "shutting_down",
        "This gateway is being replaced by another one, which decides from now on: try again.",
        retry_after_s=1,
    )
