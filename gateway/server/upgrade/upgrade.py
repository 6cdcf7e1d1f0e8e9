"""Replaces this gateway by a successor, while its models stay loaded and its streams flow.

1. The installed version starts as the successor, gets the descriptors of this gateway, and says
   that it is ready (`successor`).
2. No more workers start or end, and those that do so finish (`handover`).
3. The workers move: they hold their messages back until the successor listens (`handover`).
4. The successor gets the state of each object, and continues it (`state`, `takeover`).
5. The successor serves. It also computes the answers for the clients of this gateway, and sends
   these answers to this gateway, which has the connections (`successor_relay`).
6. This gateway gives up its other work. It gives idle connections to the successor, and serves its
   last clients (`departure`).
7. The process ends, or stands in for the successor (`stand_in`).

If a step before the fifth fails, the successor is ended, and this gateway goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Final

from gateway import VERSION
from gateway.http.app import Parts
from gateway.http.wire.command_bodies import UpgradeAnswer
from gateway.requests import refusals
from gateway.server.upgrade.departure import Departure
from gateway.server.upgrade.handover import check_ranks, hand_over, undo, until_settled
from gateway.server.upgrade.stand_in import StandInChannel
from gateway.server.upgrade.successor import HandoverError, SuccessorProcess
from gateway.server.upgrade.successor_relay import Relay
from gateway.server.upgrade.takeover import Takeover
from gateway.server.uvicorn_server import UvicornServer
from gateway.system.lane import Lane
from gateway.system.processes import ProcessGoneError
from gateway.system.refusal import Refusal
from gateway.system.state_dir import NextGateway, StateDir
from gateway.system.state_file import read_state, written_by_others
from gateway.system.systemd import Notifier
from gateway.system.tasks import Tasks

logger = logging.getLogger(__name__)

# Seconds for the successor's imports, configuration and look at the machine, which may be busy.
_READY_S: Final = 120.0
_FILE_S: Final = 10.0
# The most earlier gateways that may still serve clients: answers pass through each of them.
_MOST_EARLIER: Final = 16


class Upgrader:
    """Makes upgrades, one at a time. Once another gateway serves, `departure` is set, and after it
    `replaced`.
    """

    def __init__(
        self,
        parts: Parts,
        listener: socket.socket,
        state_dir: StateDir,
        notifier: Notifier,
        stand_in: StandInChannel | None,
        takeover: Takeover | None,
        announce: Callable[[], None],
    ) -> None:
        """`stand_in` is the channel to the process that stands in for this gateway, if there is
        one, and `takeover` the connection to the gateway before this one. `announce` writes this
        gateway's address into the state folder.
        """
        self.replaced = asyncio.Event()
        self.departure: Departure | None = None
        self.stand_in = stand_in
        self.announce = announce
        self._parts = parts
        self._listener = listener
        self._state_dir = state_dir
        self._notifier = notifier
        self._takeover = takeover
        self._upgrading: asyncio.Task[UpgradeAnswer] | None = None
        self._server: UvicornServer | None = None
        self._lane = Lane("upgrade")
        self._tasks = Tasks("upgrade")
        self._loop = asyncio.get_running_loop()

    def watch_signals(self, server: UvicornServer, signals: asyncio.Queue[int]) -> None:
        """From now on handle SIGUSR2, and the signals from the process that stands in for this
        gateway.
        """
        self._server = server
        signal.signal(
            signal.SIGUSR2,
            lambda _number, _frame: self._loop.call_soon_threadsafe(self.upgrade_soon),
        )
        if self.stand_in is not None:
            server.admits = self.stand_in.admits
            self.stand_in.watch(functools.partial(_handle_sent_on, signals))

    async def upgrade(self) -> UpgradeAnswer:
        """Replace this gateway. Raises: Refusal: this gateway goes on; the text says why."""
        if self._upgrading is not None or self.replaced.is_set():
            raise refusals.being_replaced()
        upgrading = self._upgrading = asyncio.ensure_future(self._upgrade())
        upgrading.add_done_callback(_read_exception)
        try:
            # The client that asked for the upgrade may disconnect meanwhile.
            return await asyncio.shield(upgrading)
        except asyncio.CancelledError:
            if upgrading.cancelled():
                raise refusals.shutting_down() from None
            raise

    def upgrade_soon(self) -> None:
        """Replace this gateway on a signal. A failure is logged."""
        self._tasks.start(self._upgrade_quietly(), "upgrade")

    async def abandon(self) -> None:
        """Cancel the present upgrade, if there is one and the successor doesn't serve yet. Returns
        once the upgrade has ended.
        """
        if self._upgrading is None:
            return
        if self.departure is None:
            self._upgrading.cancel()
        await asyncio.wait({self._upgrading})

    async def close(self) -> None:
        await self._tasks.cancel_all()

    async def _upgrade_quietly(self) -> None:
        try:
            await self.upgrade()
        except Refusal as refusal:
            logger.error("%s", refusal.message)

    async def _upgrade(self) -> UpgradeAnswer:
        try:
            return await self._replace(self._loop.time())
        except (HandoverError, OSError, ProcessGoneError) as error:
            self._parts.fleet.events.emit("upgrade", None, refused=str(error))
            raise Refusal(
                "model_unavailable",
                f"The gateway was not replaced, and goes on: {str(error).rstrip('.')}.",
                lasting=True,
            ) from error
        finally:
            self._upgrading = None

    async def _replace(self, began_at: float) -> UpgradeAnswer:
        parts, relay = self._parts, Relay()
        parts.fleet.check_serves()
        python = await self._chosen_python()
        self._earlier()
        check_ranks(parts)
        our_end, successors_end = self._stand_in_ends()
        with successors_end:
            async with contextlib.AsyncExitStack() as unless_it_serves:
                if our_end is not None:
                    unless_it_serves.callback(our_end.close)
                # The callbacks of this stack run after the successor has ended. Workers that have
                # connected to the successor end with it.
                after_end = unless_it_serves.enter_context(contextlib.ExitStack())
                # 1.
                successor = await SuccessorProcess.start(
                    python,
                    {**os.environ, **self._notifier.environment},
                    [self._listener.fileno(), self._state_dir.lock, 2, successors_end.fileno()],
                )
                unless_it_serves.push_async_callback(successor.end)
                introduction = await successor.until_ready(_READY_S)
                # 2.
                await until_settled(parts)
                after_end.push(functools.partial(self._go_on, relay))
                await parts.recorder.write()
                paused_at = self._loop.time()
                # 3., 4. and 5.
                await hand_over(parts, relay, successor, self._earlier())
                unless_it_serves.pop_all()
        now = self._loop.time()
        # 6. and 7.
        await self._depart(relay, successor, python, our_end)
        return UpgradeAnswer(
            version=introduction.version,
            version_before=VERSION,
            pid=introduction.pid,
            pid_before=os.getpid(),
            seconds=round(now - began_at, 3),
            still_s=round(now - paused_at, 3),
        )

    def _go_on(
        self,
        relay: Relay,
        _kind: object,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Undo a hand-over that has failed with `error`."""
        logger.warning("The next gateway doesn't come up: %s", error)
        undo(self._parts, relay)
        self.announce()

    async def _depart(
        self,
        relay: Relay,
        successor: SuccessorProcess,
        python: str,
        stands_in: socket.socket | None,
    ) -> None:
        assert self._server is not None
        self._notifier.silence()
        if self.stand_in is not None:
            self.stand_in.unwatch()
        self.departure = Departure(
            self._parts, self._server, relay, successor, self._takeover, python, stands_in
        )
        try:
            await self.departure.give_up_work()
        finally:
            self.replaced.set()

    def _earlier(self) -> int:
        """The number of gateways before this one that still serve clients. Raises: HandoverError:
        these are too many.
        """
        if self._takeover is None or self._takeover.gone.is_set():
            return 0
        count = self._takeover.earlier + 1
        if count >= _MOST_EARLIER:
            raise HandoverError(
                f"{count} gateways before this one still serve their clients: wait until some of "
                "them have ended"
            )
        return count

    async def _chosen_python(self) -> str:
        """The successor's interpreter: as the state folder names it, or the one of this process."""
        path = self._state_dir.successor_path

        def read() -> NextGateway:
            if path.exists() and (reason := written_by_others(path, path.stat())) is not None:
                raise OSError(f"{path} isn't read: {reason}")
            wish = read_state(path, NextGateway) or NextGateway()
            path.unlink(missing_ok=True)
            return wish

        wish = await self._lane.run(read, _FILE_S, "the state folder")
        return wish.python or sys.executable

    def _stand_in_ends(self) -> tuple[socket.socket | None, socket.socket]:
        """The two ends of the channel between the next gateway and the process that stands in for
        it. First the end of this process, or None if another process stands in; then the end of
        the next gateway.
        """
        if self.stand_in is not None:
            return None, self.stand_in.duplicate()
        return socket.socketpair()


def _read_exception(upgrading: asyncio.Task[UpgradeAnswer]) -> None:
    """Read the exception of an upgrade, since the client that asked for it may have gone. An event
    tells of the failure already, so the log has it only for debugging.
    """
    if not upgrading.cancelled() and isinstance(error := upgrading.exception(), Exception):
        logger.debug("The gateway was not replaced: %s", error)


def _handle_sent_on(signals: asyncio.Queue[int], number: int) -> None:
    """Handle a signal from the process that stands in for this gateway."""
    if number in (signal.SIGTERM, signal.SIGINT):
        signals.put_nowait(number)
    else:
        os.kill(os.getpid(), number)
