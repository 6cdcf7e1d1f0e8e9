"""What HTTP says of every route: its methods, and heads of answers that don't end."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send


def allowed_methods(routes: Iterable[BaseRoute], scope: Scope) -> set[str]:
    """What may be done at the path of a request, by all routes that have it."""
    # A mount has left its mark in the scope.
    return _allowed(routes, {**scope, "root_path": scope.get("app_root_path", "")})


def _allowed(routes: Iterable[BaseRoute], scope: Scope) -> set[str]:
    found: set[str] = set()
    for route in routes:
        match, child = route.matches(scope)
        if match is Match.NONE:
            continue
        if inner := getattr(route, "routes", None):
            found |= _allowed(inner, {**scope, **child})
        else:
            found |= getattr(route, "methods", None) or set()
    return found


class _HeadDoneError(Exception):
    """Leaves an answer whose head is all that was asked for."""


class Heads:
    """HEAD gets the head that GET would get. A stream, which may go on for ever, ends with it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "more_body": False} if message.get("more_body") else message)
            if message.get("more_body"):
                raise _HeadDoneError

        try:
            await self._app(scope, receive, send_head)
        except _HeadDoneError:
            return
