"""Why a model's requests are turned away, in sentences for their clients."""

from __future__ import annotations

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
    """`description` says what the model is or does instead."""
    return Refusal(
        "deadline_exceeded",
        f"The request waited for {model_id!r} until its deadline of {deadline_s:g} s passed; "
        f"X-Deadline-S sets another. The model {description}.",
        # Its client's patience is at an end, and another try would have as much again.
        lasting=True,
    )


def died_twice(model_id: str) -> Refusal:
    return _deadly(model_id, "was ended")


def kept_out(model_id: str, left_s: float) -> Refusal:
    """The same for one that is sent again."""
    return _deadly(model_id, f"is kept out for another {left_s:.0f} s")


def model_changed(model_id: str) -> Refusal:
    return Refusal(
        "model_unavailable",
        f"The files of {model_id!r} changed while the answer was interrupted, and the rest would "
        "come from another model: send the request again.",
    )


def unable(model_id: str, wanted: Ability) -> Refusal:
    """The model makes nothing of the kind."""
    return Refusal("invalid_request_error", _inability(model_id, wanted), param="model")


def _deadly(model_id: str, what: str) -> Refusal:
    return Refusal(
        "worker_crashed",
        f"Two workers of {model_id!r} died within {SUSPECT_TOKENS} tokens of this request, so it "
        f"{what}: change it before you send it again.",
        lasting=True,
    )


def _inability(model_id: str, wanted: Ability) -> str:
    match wanted:
        case "text":
            return (
                f"{model_id!r} is made for vectors and writes no text: it serves /v1/embeddings "
                "or /v1/rerank."
            )
        case "embedding":
            return f"{model_id!r} makes no embeddings of texts."
        case "score":
            return f"{model_id!r} can't compare texts."
