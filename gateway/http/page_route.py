"""GET /ui: the operator's page. Whoever asks gets it; it asks for the admin key itself."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.openapi.operation import Described, Operation
from gateway.http.page.page import Page
from gateway.system.refusal import Refusal

# Nothing but files from here runs, is shown or is asked, and no other page may frame this one.
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
_HEADERS: Final = {
    # A new version is seen at once; what is as it was costs a 304.
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


async def page(request: Request) -> Response:
    shown: Page = request.app.state.page
    path = request.path_params.get("path") or "index.html"
    try:
        file = await shown.find(path)
    except OSError as error:
        raise Refusal("internal_error", f"The page can't be read: {error}.") from error
    if file is None:
        raise Refusal("not_found", f"The page at /ui has no file {path!r}.")
    headers = {**_HEADERS, "etag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


_PAGE: Final = Operation(summary="The page", tag="operation", answer="text/html")
_FILE: Final = Operation(
    summary="A file of the page", tag="operation", answer="text/html", refusals=("not_found",)
)

routes = [Described("/ui", page, _PAGE), Described("/ui/{path:path}", page, _FILE)]
