"""The operator's page at /ui, and the text at /."""

from __future__ import annotations

import hashlib
import html
import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from gateway import VERSION
from gateway.http.wire.openapi import Operation, Routes
from gateway.system.lane import Lane
from gateway.system.refusal import Refusal

routes = Routes("operation")

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
        paths = (each for each in self._folder.rglob("*") if each.is_file())
        return {each.relative_to(self._folder).as_posix(): _file(each) for each in paths}


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
    shown: Page = request.app.state.page
    path = request.path_params.get("path") or "index.html"
    try:
        file = await shown.find(path)
    except OSError as error:
        raise Refusal("internal_error", f"The page can't be read: {error}.") from error
    if file is None:
        raise Refusal("not_found", f"The page at /ui has no file {path!r}.")
    headers = {**_PAGE_HEADERS, "etag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


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
    known = {getattr(each, "path", None) for each in request.app.routes}
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
