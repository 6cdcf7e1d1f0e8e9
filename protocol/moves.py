"""A worker's way from one gateway to the next."""

from __future__ import annotations

from protocol.message import Message


class Move(Message, frozen=True, tag="move"):
    """Another gateway, the process `parent`, is about to take this worker over: it listens at
    `address`, and `key` opens its channel. Answered by `Moved`.
    """

    address: str
    key: bytes
    parent: int


class Moved(Message, frozen=True, tag="moved"):
    """All that was to be said here has been said."""


class Settle(Message, frozen=True, tag="settle"):
    """The next gateway's first word: from now on it is the worker's only one, and its parent."""


class Stay(Message, frozen=True, tag="stay"):
    """The next gateway didn't come up: everything is as it was before `Move`."""
