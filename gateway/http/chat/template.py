"""What a chat template is told beside the messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from gateway.http.bodies import ABSENT, given
from gateway.http.structure import StructuredBody
from gateway.system.refusal import Refusal

_MOST_BYTES: Final = 1 << 16

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

Verbosity = Literal["low", "medium", "high"]


class TemplateBody(StructuredBody, kw_only=True):
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: Raw = ABSENT


def template_arguments(body: TemplateBody, defaults: Mapping[str, Any]) -> str:
    """A JSON object as text; empty if there is nothing to tell. `defaults` are the model's.

    Templates have no common word for effort: gpt-oss knows its degrees, most others know thinking
    to be on or off.

    Raises:
        Refusal: they are no object.
    """
    arguments = dict(defaults)
    if body.reasoning_effort is not None:
        arguments["reasoning_effort"] = body.reasoning_effort
        if body.reasoning_effort == "none":
            arguments["enable_thinking"] = False
    if body.verbosity is not None:
        arguments["verbosity"] = body.verbosity
    if body.enable_thinking is not None:
        arguments["enable_thinking"] = body.enable_thinking
    if given(body.chat_template_kwargs):
        arguments |= _object(body.chat_template_kwargs)
    return msgspec.json.encode(arguments).decode() if arguments else ""


def thinks(arguments: str) -> bool:
    """Whether the model may think, by what its template is told."""
    told = msgspec.json.decode(arguments) if arguments else {}
    return told.get("enable_thinking") is not False and told.get("thinking") is not False


def _object(raw: Raw) -> dict[str, Any]:
    if len(raw) <= _MOST_BYTES and bytes(raw).lstrip().startswith(b"{"):
        try:
            return msgspec.json.decode(raw, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            # Raw text may be broken beneath its beginning.
            pass
    raise Refusal(
        "invalid_request_error",
        f"chat_template_kwargs: send an object of {_MOST_BYTES >> 10} KiB at most.",
        param="chat_template_kwargs",
    )
