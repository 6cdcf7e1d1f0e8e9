"""What lists and streams are asked for by their query string."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from gateway.http.bodies import read_count
from gateway.system.refusal import Refusal

_LISTED: Final = 20
_MOST_LISTED: Final = 100
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


def read_limit(request: Request) -> int:
    """How many to list.

    Raises:
        Refusal: it is no number from 1 to 100.
    """
    count = read_count(request, "limit", _LISTED)
    if not 1 <= count <= _MOST_LISTED:
        raise Refusal(
            "invalid_request_error",
            f"limit is {count}: send a number from 1 to {_MOST_LISTED}.",
            param="limit",
        )
    return count


def reads_newest_first(request: Request, *, default: bool) -> bool:
    """Raises: Refusal: `order` is neither asc nor desc."""
    order = request.query_params.get("order")
    if order not in (None, "asc", "desc"):
        raise Refusal(
            "invalid_request_error",
            f"order is {order[:100]!r}: send asc or desc.",
            param="order",
        )
    return default if order is None else order == "desc"


def read_flag(request: Request, name: str) -> bool:
    """Absent is false.

    Raises:
        Refusal: it is neither true nor false.
    """
    text = request.query_params.get(name, "false")
    if (flag := _FLAGS.get(text.lower())) is None:
        raise Refusal(
            "invalid_request_error", f"{name} is {text[:100]!r}: send true or false.", param=name
        )
    return flag
