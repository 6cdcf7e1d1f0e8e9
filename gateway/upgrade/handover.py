"""Replacing this gateway by a successor, from its start until it serves.

Until the successor says that it serves, everything can be undone: workers hold back what they have
to say, and are told to stay if it doesn't come up.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from gateway.clock.present import present_clock
from gateway.dispatch.refusal import Refusal
from gateway.dispatch.request import Request
from gateway.model import refusals
from gateway.process.identity import ProcessGoneError
from gateway.serve.notify import Notifier
from gateway.serve.uvicorn_server import Server
from gateway.state.state_dir import StateDir
from gateway.state.state_file import read_state
from gateway.system.lane import Lane
from gateway.system.tasks import Tasks
from gateway.upgrade.departure import Departure
from gateway.upgrade.keeper import Keeper
from gateway.upgrade.messages import (
    Cancelled,
    Estate,
    Failure,
    Introduction,
    Serving,
    Spent,
    Submitted,
)
from gateway.upgrade.relay import Relay
from gateway.upgrade.successor import SuccessorProcess, UnfitError
from gateway.upgrade.takeover import Takeover
from gateway.upgrade.wish import Wish
from gateway.version import VERSION
from protocol.messages import Move

if TYPE_CHECKING:
    from gateway.api.app import Parts

logger = logging.getLogger(__name__)

# Imports, the configuration, a look at the machine; on one that does much else.
_PROOF_S: Final = 120.0
_MOVE_S: Final = 15.0
_SERVE_S: Final = 60.0
_FILE_S: Final = 10.0
# Earlier gateways that still serve clients: each hands on what the next one computes.
_MOST_EARLIER: Final = 16


class Upgraded(Struct, frozen=True):
    """`seconds` is how long it took until the next gateway served, and `still_s` for how much of
    that workers held back what they had to say.
    """

    version: str
    version_before: str
    pid: int
    pid_before: int
    seconds: float
    still_s: float


class Upgrader:
    """One upgrade at a time. `left` is set once another gateway serves; from then on there is a
    `departure`.
    """

    def __init__(
        self,
        parts: Parts,
        listener: socket.socket,
        state_dir: StateDir,
        notifier: Notifier,
        keeper: Keeper | None,
        takeover: Takeover | None,
        announce: Callable[[], None],
    ) -> None:
        """`keeper` is who stands in for this gateway towards others, if somebody does, and
        `takeover` is about the gateway before this one. `announce` tells others where this one is.
        """
        self.left = asyncio.Event()
        self.departure: Departure | None = None
        self.keeper = keeper
        self.announce = announce
        self._parts = parts
        self._listener = listener
        self._state_dir = state_dir
        self._notifier = notifier
        self._takeover = takeover
        self._upgrading: asyncio.Task[Upgraded] | None = None
        self._server: Server | None = None
        self._lane = Lane("upgrade")
        self._tasks = Tasks("upgrade")
        self._relay = Relay()
        self._loop = asyncio.get_running_loop()

    def begin(self, server: Server, signals: asyncio.Queue[int]) -> None:
        """From now on it can be replaced, and hears who stands in for it."""
        self._server = server
        signal.signal(
            signal.SIGUSR2,
            lambda _number, _frame: self._loop.call_soon_threadsafe(self.upgrade_soon),
        )
        if self.keeper is not None:
            server.admits = self.keeper.admits
            self.keeper.watch(functools.partial(_signalled, signals))

    @property
    def _earlier(self) -> int:
        """Gateways before this one that still serve clients."""
        if self._takeover is None or self._takeover.gone.is_set():
            return 0
        return self._takeover.estate.earlier + 1

    async def upgrade(self) -> Upgraded:
        """Raises: Refusal: this gateway goes on; the text says why."""
        if self._upgrading is not None or self.left.is_set():
            raise refusals.being_replaced()
        upgrading = self._upgrading = asyncio.ensure_future(self._upgrade())
        upgrading.add_done_callback(_look_at)
        try:
            # Whoever asked may leave meanwhile.
            return await asyncio.shield(upgrading)
        except asyncio.CancelledError:
            if upgrading.cancelled():
                raise refusals.shutting_down() from None
            raise

    async def abandon(self) -> None:
        """Go on here, unless another gateway serves already; returns once one of both is so."""
        if self._upgrading is None:
            return
        if self.departure is None:
            self._upgrading.cancel()
        await asyncio.wait({self._upgrading})

    def upgrade_soon(self) -> None:
        """For a signal: what comes of it is an event."""
        self._tasks.start(self._upgrade_quietly(), "upgrade")

    async def close(self) -> None:
        await self._tasks.cancel_all()

    async def _upgrade_quietly(self) -> None:
        try:
            await self.upgrade()
        except Refusal as refusal:
            logger.error("%s", refusal.message)

    async def _upgrade(self) -> Upgraded:
        began_at = self._loop.time()
        try:
            self._parts.fleet.check_serves()
            python = await self._chosen_python()
            if self._earlier >= _MOST_EARLIER:
                raise UnfitError(
                    f"{self._earlier} gateways before this one still serve their clients: wait "
                    "until some of them have ended"
                )
            self._check_ranks()
            return await self._replace(python, began_at)
        except (UnfitError, OSError, ProcessGoneError) as error:
            self._parts.fleet.events.emit("upgrade", None, refused=str(error))
            raise Refusal(
                "model_unavailable",
                f"The gateway was not replaced, and goes on: {str(error).rstrip('.')}.",
                lasting=True,
            ) from error
        finally:
            self._upgrading = None

    def _check_ranks(self) -> None:
        """Raises: UnfitError: rank 0 is followed by processes that watch this gateway, or an agent
        that does, and that nobody could tell to watch another.
        """
        for each in self._parts.fleet.roster.everyone:
            if each.worker is not None and each.worker.followers is not None:
                name = each.model.id
                raise UnfitError(
                    f"{name!r} is loaded with several ranks, which can't be handed over: "
                    f"`bulkhead unload {name} --hold` first and `bulkhead load {name}` afterwards, "
                    "or restart the gateway"
                )

    async def _chosen_python(self) -> str:
        path = self._state_dir.successor_path

        def take() -> Wish:
            wish = read_state(path, Wish) or Wish()
            path.unlink(missing_ok=True)
            return wish

        wish = await self._lane.run(take, _FILE_S, "the state folder")
        return wish.python or sys.executable

    async def _replace(self, python: str, began_at: float) -> Upgraded:
        keeper, its_keeper = self._keeper_ends()
        environment = {**os.environ, **self._notifier.environment}
        descriptors = [self._listener.fileno(), self._state_dir.lock, 2, its_keeper.fileno()]
        try:
            successor = await SuccessorProcess.start(python, environment, descriptors)
            try:
                said = await successor.prove(_PROOF_S)
                await self._until_settled()
                try:
                    self._check_ranks()
                    still_since = self._loop.time()
                    await self._hand_over(successor)
                except BaseException as error:
                    logger.warning("The next gateway doesn't come up: %s", error)
                    # It takes with it the workers that have settled with it already.
                    await successor.end()
                    self._undo()
                    raise
            except BaseException:
                await successor.end()
                raise
        except BaseException:
            if keeper is not None:
                keeper.close()
            raise
        finally:
            its_keeper.close()
        upgraded = self._upgraded(said, began_at, self._loop.time() - still_since)
        await self._leave(successor, python, keeper)
        return upgraded

    async def _leave(
        self, successor: SuccessorProcess, python: str, keeper: socket.socket | None
    ) -> None:
        assert self._server is not None
        self._notifier.silence()
        if self.keeper is not None:
            self.keeper.unwatch()
        self.departure = Departure(
            self._parts, self._server, self._relay, successor, self._takeover, python, keeper
        )
        try:
            await self.departure.begin()
        finally:
            self.left.set()

    def _keeper_ends(self) -> tuple[socket.socket | None, socket.socket]:
        """This gateway's end of a channel to who serves, if it is to stand in for the next one; and
        what the next one gets.
        """
        if self.keeper is not None:
            return None, self.keeper.duplicate()
        return socket.socketpair()

    async def _until_settled(self) -> None:
        seconds = self._parts.fleet.settings.workers.load_timeout_s
        try:
            await self._parts.fleet.until_settled(seconds)
        except TimeoutError:
            raise UnfitError(
                f"models were still being loaded or unloaded after {seconds:g} s"
            ) from None

    async def _hand_over(self, successor: SuccessorProcess) -> None:
        """Raises: UnfitError, OSError, ProcessGoneError: it is to be undone."""
        fleet, parts = self._parts.fleet, self._parts
        self._relay = Relay()
        channels = fleet.hand_over(self._relay)
        workers = {
            each.model.id: each.worker for each in fleet.roster.everyone if each.worker is not None
        }
        orders = {
            model_id: Move(
                address=fleet.channel_address(channels[model_id]),
                key=channels[model_id].workers_key,
                parent=successor.pid,
            )
            for model_id in workers
        }
        moved = await asyncio.gather(
            *(each.move(orders[model_id], _MOVE_S) for model_id, each in workers.items())
        )
        if not all(moved):
            raise UnfitError("a worker didn't let itself be handed over: see its log")
        making = parts.mailbox.hand_over()
        parts.keys.forward(self._relay.spend)
        estate = Estate(
            models=tuple(
                each.state_for(self._relay.number, channels.get(each.model.id))
                for each in fleet.roster.everyone
            ),
            incarnation=fleet.next_incarnation,
            events=fleet.events.kept,
            keys=parts.keys.state,
            making=tuple(making),
            earlier=self._earlier,
            away_s=present_clock().away_s,
        )
        for each in workers.values():
            successor.passage.send(b"prnt", each.incarnation, os.dup(each.output))
        try:
            async with asyncio.timeout(_SERVE_S):
                await successor.passage.sent()
                successor.frames.send(estate)
                await self._until_it_serves(successor)
        except TimeoutError:
            raise UnfitError(f"it did not serve within {_SERVE_S:g} s") from None

    async def _until_it_serves(self, successor: SuccessorProcess) -> None:
        """Workers may settle with it before it takes clients. Raises: UnfitError."""
        while True:
            match await successor.frames.receive():
                case Serving():
                    return
                case Failure(reason=reason):
                    raise UnfitError(reason)
                case None:
                    raise UnfitError(f"while it took over {await successor.last_words()}")
                case message:
                    self._relay.receive(message)

    def _undo(self) -> None:
        parts = self._parts
        parts.mailbox.take_back()
        parts.keys.forward(None)
        parts.fleet.take_back()
        self.announce()
        for order in self._relay.undo():
            match order:
                case Submitted(number=number, model=model_id):
                    self._submit(model_id, self._relay.request(number))
                case Cancelled(number=number):
                    request = self._relay.request(number)
                    for each in parts.fleet.roster.everyone:
                        each.traffic.cancel(request)
                case Spent(name=name, usage=usage):
                    parts.keys.account(name, usage)

    def _submit(self, model_id: str, request: Request) -> None:
        for each in self._parts.fleet.roster.everyone:
            if each.model.id == model_id:
                try:
                    each.submit(request)
                except Refusal as refusal:
                    request.refuse(refusal)

    def _upgraded(self, said: Introduction, began_at: float, still_s: float) -> Upgraded:
        return Upgraded(
            version=said.version,
            version_before=VERSION,
            pid=said.pid,
            pid_before=os.getpid(),
            seconds=round(self._loop.time() - began_at, 3),
            still_s=round(still_s, 3),
        )


def _look_at(upgrading: asyncio.Task[Upgraded]) -> None:
    """A refusal is an event already, and nobody may be there to be told."""
    if not upgrading.cancelled() and isinstance(error := upgrading.exception(), Exception):
        logger.debug("The gateway was not replaced: %s", error)


def _signalled(signals: asyncio.Queue[int], number: int) -> None:
    """By who stands in for this gateway."""
    if number in (signal.SIGTERM, signal.SIGINT):
        signals.put_nowait(number)
    else:
        os.kill(os.getpid(), number)
