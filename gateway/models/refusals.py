"""Why a model can't serve, in sentences for its clients and its operator."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from gateway.system.refusal import Refusal


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
    """`retry_after_s` None: it won't be tried again by itself."""
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
    """Why there is no worker, for an operator who has nothing but this.

    `status` None: the reason has it. `next_attempt_s` is from now; None: there is none, or it comes
    at once.
    """
    text = f"the worker was lost: {reason}"
    if status is not None:
        text += f" ({status})"
    if tail:
        # Python's own report of a fatal error ends with lists of modules.
        fatal = (each for each in reversed(tail) if each.startswith("Fatal Python error"))
        text += f"; its last line was: {next(fatal, tail[-1])}"
    if next_attempt_s is None:
        return text
    at = datetime.fromtimestamp(time.time() + next_attempt_s, UTC)
    return (
        f"{text}; it died {deaths} times; the next attempt comes at {at:%Y-%m-%d %H:%M:%S} UTC, "
        f"or with `bulkhead load {model_id}`"
    )


def being_replaced() -> Refusal:
    return Refusal(
        "shutting_down",
        "This gateway is being replaced by another one, which decides from now on: try again.",
        retry_after_s=1,
    )
