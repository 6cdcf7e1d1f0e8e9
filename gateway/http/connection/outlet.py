"""The short way out for more of a response."""

from __future__ import annotations

from typing import Final, Protocol

from starlette.types import Scope

# In a scope's "state".
OUTLET: Final = "outlet"


class Outlet(Protocol):
    """Writes more of a body whose response has begun, past the layers of the application: awaiting
    each of them for every token would cost more than all else that is done for it.
    """

    @property
    def writable(self) -> bool:
        """The client is there, and takes what is written. Otherwise the long way waits for it."""

    def write(self, body: bytes) -> None:
        """Once it is writable."""


def outlet_of(scope: Scope) -> Outlet | None:
    """That of its response, where the server has one."""
    outlet: Outlet | None = scope.get("state", {}).get(OUTLET)
    return outlet
