"""The one name of a request: in its answer, in headers, events and logs."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Iterable
from typing import Final

HEADER: Final = b"x-request-id"
# It stands in JSON, in log lines and in headers, and must not need escaping in any of them.
_SANE: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:~/+=@-]{0,127}")
_MADE: Final = re.compile(r"req_[0-9a-f]{32}")


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's own X-Request-Id if it is sane and the only one, else a new one."""
    given = [value for name, value in headers if name == HEADER]
    if len(given) == 1 and _SANE.fullmatch(given[0]):
        return given[0].decode("ascii")
    return new_request_id()


def new_request_id() -> str:
    return f"req_{uuid.uuid4().hex}"


def unique(request_id: str) -> str:
    """The same, told apart from other requests to which their clients gave the same id."""
    return f"{request_id}.{secrets.token_hex(4)}"
