"""Request bodies: read within a bound, and checked against a type."""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from gateway.dispatch.refusal import Refusal

MAX_BODY_BYTES: Final = 32 << 20

_PATH: Final = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MISSING: Final = re.compile(r"missing required field `(?P<name>[^`]*)`")

_MOST_DIGITS: Final = 9

T = TypeVar("T")


async def read_json(request: Request, kind: type[T], *, optional: bool = False) -> T:
    """The body as `kind`; with `optional` an empty body is `kind`'s defaults.

    Raises:
        Refusal: too large, not JSON, or not of that type; `param` names the field.
    """
    body = await _read(request)
    if optional and not body.strip():
        body = b"{}"
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PATH.search(text)
        param = place["path"] or None if place else None
        reason = _PATH.sub("", text)
        if missing := _MISSING.search(reason):
            param = f"{param}.{missing['name']}" if param else missing["name"]
        named = f"{param}: " if param else ""
        raise Refusal("invalid_request_error", f"{named}{reason}.", param=param) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Refusal("invalid_request_error", f"The body is not valid JSON: {error}.") from error


async def _read(request: Request) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise Refusal(
                    "request_too_large",
                    f"The body is larger than {MAX_BODY_BYTES >> 20} MiB, the most that is taken.",
                )
    except ClientDisconnect:
        raise Refusal("invalid_request_error", "The client left before its body ended.") from None
    return bytes(body)


def read_count(request: Request, name: str, default: int) -> int:
    """A whole number of the query string.

    Raises:
        Refusal: it is something else.
    """
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise Refusal(
            "invalid_request_error",
            f"{name} is {text[:100]!r}: send a whole number of at most {_MOST_DIGITS} digits.",
            param=name,
        )
    return int(text)
