"""How the next gateway is to be started, in a file of the state folder."""

from __future__ import annotations

from msgspec import Struct


class Wish(Struct, frozen=True):
    """`python` is the interpreter of the next gateway. No request can name it: only who may write
    to the state folder may have programs run as the gateway's account.
    """

    python: str | None = None
