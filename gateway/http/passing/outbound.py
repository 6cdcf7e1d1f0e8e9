"""A request as another server gets it."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from starlette.requests import Request as HttpRequest

from gateway.http.passing.forms import Form
from gateway.http.passing.headers import server_headers
from gateway.http.wire.access_log import REQUEST_ID, record_of
from gateway.http.wire.auth import caller_of
from gateway.http.wire.errors import invalid
from gateway.models.fleet import Fleet
from gateway.system.http_client import Headers, Question
from gateway.upstreams.route import via_name

# Steps, also with parameters as Java's servers read them, backslashes, what would be decoded once
# more, and what is no text.
_AMBIGUOUS: Final = re.compile(
    r"(?:^|/)\.{1,2}(?:;[^/]*)?(?:/|$)|//|%[0-9a-f]{2}|[\\\0-\x1f\x7f\ufffd]", re.I
)
# What needs no escape in a path (RFC 3986, 3.3).
_PLAIN: Final = "/!$&'()*+,;=:@"


class OutboundRequest:
    """A client's request that is passed on, with `body` or a form. `target` is its path and query:
    the path is the one that was checked, since the client may have written it in a way that means
    something else at the server.
    """

    def __init__(
        self,
        http: HttpRequest,
        path: str,
        query: bytes,
        body: bytes | bytearray = b"",
        form: Form | None = None,
    ) -> None:
        """Raises: Refusal: servers disagree about the path."""
        if _AMBIGUOUS.search(path):
            raise invalid(
                f"The path {path[:200]!r} is ambiguous: send one without backslashes, bytes that "
                "are encoded twice, and steps such as '..'.",
                "path",
            )
        target = quote(path, safe=_PLAIN).encode()
        self.target = target + b"?" + query if query else target
        self.body = body
        self.form = form
        self._http = http

    def question(self, target: bytes, model: str, secrets: Headers) -> Question:
        """What a server is asked that calls the model `model`, and the target `target`. `secrets`
        are headers that show the gateway's key.
        """
        scope = self._http.scope
        fleet: Fleet = self._http.app.state.fleet
        headers = server_headers(
            scope["headers"],
            via_name(fleet.upstreams.instance),
            operator=caller_of(self._http).admin,
        )
        request_id = (REQUEST_ID, record_of(scope).id.encode())
        return Question(
            self._http.method.encode(),
            target,
            [*headers, request_id, *secrets],
            self.body if self.form is None else self.form.body(model),
            0 if self.form is None else self.form.length(model),
        )
