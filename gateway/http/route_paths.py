"""Which of the declared paths a request belongs to."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final

from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import Scope

# Of all paths that there aren't: anybody can make up more of them.
NO_ROUTE: Final = "other"


class RoutePaths:
    """Knows a request by its endpoint, and one that was refused before it had one by its path."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._routes = routes
        self._paths = dict(_paths(routes))

    def of(self, scope: Scope) -> str:
        """To be called when the request is over."""
        endpoint = scope["endpoint"] if "endpoint" in scope else _endpoint(self._routes, scope)
        # What is mounted is none itself, and can't be looked up.
        known = isinstance(endpoint, Hashable) and endpoint in self._paths
        return self._paths[endpoint] if known else NO_ROUTE  # type: ignore[index]


def _paths(
    routes: Iterable[BaseRoute], prefix: str = ""
) -> Iterator[tuple[Callable[..., Any], str]]:
    """Each endpoint, and its path as it was declared."""
    for each in routes:
        if isinstance(each, Mount):
            yield from _paths(each.routes, prefix + each.path)
        elif isinstance(each, Route):
            yield each.endpoint, prefix + each.path


def _endpoint(routes: Iterable[BaseRoute], scope: Scope) -> object:
    """The one that it would have come to; with a method that no route has, one at its path."""
    at_path = None
    for each in routes:
        match, child = each.matches(scope)
        if match is Match.NONE:
            continue
        if isinstance(each, Mount):
            return _endpoint(each.routes, {**scope, **child})
        if match is Match.FULL:
            return child["endpoint"]
        at_path = at_path or child["endpoint"]
    return at_path
