"""The threads of `bulkhead top`: one reads status and events, each other one gives an order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError
from gateway.cli.top_tables import one_line
from gateway.cli.top_view import EventReading, Happening
from gateway.http.wire.command_bodies import ModelStatus, OrderOptions, Status

_EVERY_S: Final = 1.0
# More events than a screen shows. Each reading asks for all of them again, so that no stream has
# to stay open.
_EVENTS: Final = 100
_PATIENCE_S: Final = 1.0


class Seen(Struct, frozen=True):
    reading: Status
    happenings: tuple[Happening, ...]


class Lost(Struct, frozen=True):
    """The gateway didn't answer, or answered with an error. `why` is a sentence."""

    why: str


class Feed:
    """Reads status and events once a second, on its own thread, from `start` to `stop`. The thread
    calls `tell` with each reading, and with an unexpected error, which ends the thread.
    """

    def __init__(
        self, gateway: GatewayClient, tell: Callable[[Seen | Lost | Exception], None]
    ) -> None:
        self._gateway = gateway
        self._tell = tell
        self._over = threading.Event()
        # A daemon thread: a late answer doesn't delay the end of the command.
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._tell(self._ask())
                self._over.wait(_EVERY_S)
        except Exception as error:
            self._tell(error)

    def _ask(self) -> Seen | Lost:
        try:
            reading = self._gateway.status()
            with self._gateway.events(_EVENTS, follow=False) as events:
                told = tuple(
                    self._happening(each.data) for each in events if each.kind != "comment"
                )
        except CommandError as error:
            return Lost(error.message)
        return Seen(reading, told)

    def _happening(self, data: str) -> Happening:
        event = self._gateway.read(data, EventReading)
        fields: dict[str, Any] = msgspec.json.decode(data)
        return Happening(event, fields)


Verb: TypeAlias = Literal["load", "unload", "restart", "kill"]

# Orders that end the model's process, so the user is asked first.
ASKED_FIRST: Final[tuple[Verb, ...]] = ("unload", "restart", "kill")


class Outcome(Struct, frozen=True):
    """The outcome of an order. `text` is a sentence; `done` is False for a failure."""

    text: str
    done: bool


def question(verb: Verb, model: ModelStatus) -> str:
    """The question to the user before an order that ends the model's process."""
    return f"{verb.capitalize()} {one_line(model.id)}? {_effect(verb, model)} (y/n)"


def _effect(verb: Verb, model: ModelStatus) -> str:
    match model.active_requests:
        case 0:
            return "No request is running."
        case 1:
            running, ends = "1 running request", "it ends"
        case count:
            running, ends = f"{count} running requests", "they end"
    if verb == "kill":
        return f"It interrupts {running}, to go on in the next worker."
    return f"It interrupts {running}, unless {ends} within drain_s."


class Orders:
    """Gives each order to the gateway on a thread of its own. This thread calls `tell` with the
    outcome. The same order for the same model isn't given twice at a time.
    """

    def __init__(self, gateway: GatewayClient, tell: Callable[[Outcome | Exception], None]) -> None:
        self._gateway = gateway
        self._tell = tell
        self._under_way: set[tuple[Verb, str]] = set()

    def give(self, verb: Verb, model_id: str) -> bool:
        """Give the order. Return False, and give none, if the same order is already under way."""
        order = (verb, model_id)
        if order in self._under_way:
            return False
        self._under_way.add(order)
        # A daemon thread: the gateway carries out the order even if this command ends.
        threading.Thread(target=self._run, args=order, name=verb, daemon=True).start()
        return True

    def _run(self, verb: Verb, model_id: str) -> None:
        told: Outcome | Exception
        try:
            told = self._outcome(verb, model_id)
        except Exception as error:
            told = error
        self._under_way.discard((verb, model_id))
        self._tell(told)

    def _outcome(self, verb: Verb, model_id: str) -> Outcome:
        try:
            model = self._gateway.order(verb, model_id, OrderOptions())
        except CommandError as error:
            return Outcome(one_line(error.message), done=False)
        return Outcome(f"{one_line(model.id)} is {model.state}.", done=model.state != "stopping")
