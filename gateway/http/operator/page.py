"""The operator's page at /ui, signing in on it, and the text at /.

A code that works once signs the page in. The operator's commands ask for codes.
"""

from __future__ import annotations

import hashlib
import html
import mimetypes
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from gateway import VERSION
from gateway.access.caller import NeededKey, shown_key
from gateway.access.keys import ApiKeys
from gateway.access.sign_ins import CODE_S, SESSION_S
from gateway.http.wire.bodies import json_response, read_json
from gateway.http.wire.command_bodies import PageCode
from gateway.http.wire.openapi import Operation, Routes
from gateway.system.lane import Lane
from gateway.system.refusal import Refusal

routes = Routes("operation", key=NeededKey.NOTHING)

_FOLDER: Final = Path(__file__).parent / "static"
_READ_S: Final = 20.0
# Media types of files. The system's table may differ, and browsers run only text/javascript.
_TYPES: Final = mimetypes.MimeTypes(filenames=())
_TYPES.add_type("text/javascript", ".js")
_TYPES.add_type("text/markdown", ".md")


class File(Struct, frozen=True):
    """A file of the page. `etag` identifies the content, in quotes as HTTP demands."""

    content: bytes
    media_type: str
    etag: str


class Page:
    """Reads all files of the page at the first request, and serves them from memory."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        self._folder = folder
        self._files: Mapping[str, File] | None = None
        self._lane = Lane("page")

    async def find(self, path: str) -> File | None:
        """The file at a path within the folder; None: there is no such file.

        Raises:
            OSError: the files can't be read.
        """
        if self._files is None:
            self._files = await self._lane.run(self._read, _READ_S, str(self._folder))
        return self._files.get(path)

    def _read(self) -> dict[str, File]:
        """Read all files; blocks."""
        paths = (path for path in self._folder.rglob("*") if path.is_file())
        return {path.relative_to(self._folder).as_posix(): _file(path) for path in paths}


def _file(path: Path) -> File:
    content = path.read_bytes()
    kind = _TYPES.guess_type(path.name)[0] or "application/octet-stream"
    return File(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


# The page may load, run and call only this server, and no other page may frame it.
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_PAGE_HEADERS: Final = {
    # A browser asks each time whether the file has changed; if not, the answer is 304.
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@routes.get(
    "/ui/{path:path}",
    Operation("A file of the page", answer="text/html", refusals=("not_found",)),
)
@routes.get("/ui", Operation("The page", answer="text/html"))
async def page(request: HttpRequest) -> Response:
    files: Page = request.app.state.page
    path = request.path_params.get("path") or "index.html"
    try:
        file = await files.find(path)
    except OSError as error:
        raise Refusal("internal_error", f"The page can't be read: {error}.") from error
    if file is None:
        raise Refusal("not_found", f"The page at /ui has no file {path!r}.")
    headers = {**_PAGE_HEADERS, "etag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


class ShownCode(Struct, forbid_unknown_fields=True):
    code: str


class PageSession(Struct):
    """`key` is what the page shows in place of the admin key."""

    key: str
    expires_in_s: float = SESSION_S


class SignedOut(Struct):
    """`signed_out` is false if the key that was shown is no session of the page."""

    signed_out: bool


@routes.post(
    "/admin/v1/page/codes",
    Operation("A code that signs in the page once", others={201: PageCode}, key=NeededKey.ADMIN),
)
async def make_code(request: HttpRequest) -> Response:
    keys: ApiKeys = request.app.state.keys
    now = time.monotonic()
    if keys.sign_ins.find(shown_key(request.scope["headers"]) or b"", now) is not None:
        # Else whoever got hold of a session could go on for ever.
        raise Refusal(
            "permission_denied", "A session of the page makes no codes: `bulkhead page` does."
        )
    code = keys.sign_ins.code(now) if keys.required else None
    return json_response(PageCode(code, CODE_S), status_code=201)


@routes.post(
    "/ui/session",
    Operation(
        "Exchange a code for a session of the page",
        body=ShownCode,
        others={201: PageSession},
        refusals=("rate_limit_exceeded",),
    ),
)
async def sign_in(request: HttpRequest) -> Response:
    keys: ApiKeys = request.app.state.keys
    shown = await read_json(request, ShownCode)
    now = time.monotonic()
    if wait_s := keys.sign_ins.wait_s(now):
        raise Refusal(
            "rate_limit_exceeded",
            f"Too many wrong codes came: sign in with the admin key, or try again in {wait_s} s.",
            retry_after_s=wait_s,
        )
    secret = keys.sign_ins.exchange(shown.code, now)
    if secret is None:
        raise Refusal(
            "invalid_api_key",
            f"This code was used already, or is older than {CODE_S:.0f} s: `bulkhead page` makes "
            "another.",
        )
    return json_response(PageSession(secret), status_code=201)


@routes.delete("/ui/session", Operation("End the session of the page", answer=SignedOut))
async def sign_out(request: HttpRequest) -> Response:
    keys: ApiKeys = request.app.state.keys
    secret = shown_key(request.scope["headers"]) or b""
    return json_response(SignedOut(keys.sign_ins.end(secret, time.monotonic())))


_TITLE: Final = f"Bulkhead {VERSION}, a server of models on this machine."
_PLACES: Final = (
    ("/ui", "the operator's page"),
    ("/v1", "OpenAI's API and Anthropic's: the base URL of their clients is this, or / alone"),
    ("/api", "Ollama's API"),
    ("/v1/models", "the models"),
    ("/health", "how they are"),
    ("/metrics", "figures for Prometheus"),
    ("/openapi.json", "every route, for programs"),
)
# Prefixes of paths, which are no pages and so get no link.
_BASES: Final = ("/v1", "/api")
_FRONT_HEADERS: Final = {"content-security-policy": "default-src 'none'", "vary": "accept"}


@routes.get("/", Operation("The paths of this server", answer="text/plain"))
async def front(request: HttpRequest) -> Response:
    known = {route.path for route in request.app.routes}
    places = [(path, about) for path, about in _PLACES if path in _BASES or path in known]
    if "text/html" not in request.headers.get("accept", ""):
        lines = [_TITLE, *(f"  {path:<14} {about}" for path, about in places)]
        return PlainTextResponse("\n".join(lines) + "\n", headers=_FRONT_HEADERS)
    items = "".join(
        f"<li>{_link(path)}: {html.escape(about, quote=False)}</li>" for path, about in places
    )
    return HTMLResponse(
        f'<!doctype html><html lang="en"><title>Bulkhead</title><p>{_TITLE}</p><ul>{items}</ul>\n',
        headers=_FRONT_HEADERS,
    )


def _link(path: str) -> str:
    return path if path in _BASES else f'<a href="{path}">{path}</a>'
