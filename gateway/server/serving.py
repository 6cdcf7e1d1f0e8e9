"""The gateway while it serves: from a bound socket to its drain, or until its successor serves."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Final

import uvicorn

from gateway.http.app import Parts, build_app
from gateway.http.wire.connection import ClientConnection
from gateway.http.wire.connection_limits import Handshake
from gateway.library.pulls import Pulls
from gateway.models.model_supervisor import ModelSupervisor
from gateway.models.reload import Reloader
from gateway.server.upgrade.departure import Departure
from gateway.server.upgrade.state import CannotTakeOverError
from gateway.server.upgrade.takeover import Takeover
from gateway.server.upgrade.upgrade import Upgrader
from gateway.server.uvicorn_server import UvicornServer
from gateway.system.notation import url
from gateway.system.processes import ProcessGoneError
from gateway.system.state_dir import near_url
from gateway.system.systemd import Notifier
from gateway.system.tasks import Tasks
from gateway.system.tls import Certificates

logger = logging.getLogger(__name__)

# Seconds for connections that are open when all requests have ended: idle clients, log followers.
_CLOSE_CONNECTIONS_S: Final = 1
_OBJECTS_UNTIL_COLLECTION: Final = 10_000


class GatewayServer:
    """Serves requests, and starts and ends the gateway's other work. SIGTERM and SIGINT end the
    gateway after a drain, which a second signal cuts short. On SIGHUP the gateway reads its
    configuration again. `takeover` is the connection to the gateway before this one, if this one
    replaces one.
    """

    def __init__(
        self,
        parts: Parts,
        listener: socket.socket,
        notifier: Notifier,
        certificates: Certificates | None,
        takeover: Takeover | None,
        upgrader: Upgrader,
    ) -> None:
        self._parts = parts
        self._listener = listener
        self._notifier = notifier
        self._takeover = takeover
        self._upgrader = upgrader
        listening, tls = listener.getsockname()[:2], certificates is not None
        self._address, self._near = url(*listening, tls=tls), near_url(*listening, tls=tls)
        self._signals: asyncio.Queue[int] = asyncio.Queue()
        self._background = Tasks("server")
        self._handshakes = Tasks("connections")
        protocol = functools.partial(ClientConnection, limiter=parts.limiter)
        secure = certificates and functools.partial(
            Handshake,
            ClientConnection,
            limiter=parts.limiter,
            context=certificates.context,
            tasks=self._handshakes,
        )
        self._server = UvicornServer(
            uvicorn.Config(
                build_app(parts, upgrader.upgrade),
                http=secure or protocol,  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                timeout_graceful_shutdown=_CLOSE_CONNECTIONS_S,
            ),
            self._signals,
        )

    async def run(self) -> None:
        """Serve; returns once no client is left."""
        if self._takeover is not None:
            await self._take_over(self._takeover)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        await self._server.until_started(serving)
        await self._start_work()
        self._watch()
        self._upgrader.watch_signals(self._server, self._signals)
        over = asyncio.create_task(_either(serving, self._upgrader.replaced))
        received = await _first_of(over, self._signals)
        await self._upgrader.abandon()
        if (departure := self._upgrader.departure) is None:
            await self._drain()
            await self._stop(serving)
        else:
            if received is not None:
                departure.forward_signal(received, None)
            await self._serve_last_clients(departure, serving)
        await self._upgrader.close()
        if self._takeover is not None:
            await self._takeover.close()
        if departure is None:
            # Gateways before this one may have sent usage until now.
            try:
                await self._parts.keys.write_accounts()
            except OSError as error:
                logger.warning("%s", error)
            logger.info("Stopped")

    # The start

    async def _take_over(self, takeover: Takeover) -> None:
        """Go on from the state of the gateway before this one, or end this process."""
        parts = self._parts
        try:
            await takeover.continue_state(parts.fleet, parts.keys, parts.mailbox)
        except (CannotTakeOverError, ProcessGoneError, OSError) as error:
            await takeover.fail(str(error))
            os._exit(1)
        parts.fleet.start(preload=False)

    async def _start_work(self) -> None:
        """Start all work that isn't part of a request. The server accepts requests already."""
        parts, takeover, background = self._parts, self._takeover, self._background
        fleet, reloader = parts.fleet, parts.reloader
        if takeover is None:
            fleet.start()
            parts.mailbox.start()
            await parts.pulls.resume()
            # Scripts wait for this line. No other line goes to stdout.
            print(f"Bulkhead serves on {self._address}", flush=True)
            logger.info("%s", _first_steps(self._near, fleet.roster.everyone))
        else:
            parts.mailbox.start()
            self._upgrader.announce()
            takeover.serve(fleet, self._server, parts.keys, parts.mailbox)
            background.start(_resume_pulls(takeover, parts.pulls), "pulls")
        fleet.say_absent(reloader.present.absent)
        fleet.disks.start(lambda: fleet.settings.discovery.discover, reloader.rediscover)
        parts.last_used.start(lambda: fleet.roster.everyone)
        parts.recorder.start()
        background.start(reloader.warn_of_groups(), "groups")

    def _watch(self) -> None:
        """Start the watches, and install the handlers, that last until the gateway's end."""
        _collect_rarely()
        notifier, background = self._notifier, self._background
        notifier.ready(self._parts.fleet.caution or f"Serves on {self._address}")
        self._parts.limiter.watch(background)
        self._parts.keys.watch(background)
        if notifier.period_s is not None:
            background.repeat(notifier.sign_of_life, "watchdog", notifier.period_s)
        hung_up = functools.partial(
            asyncio.get_running_loop().call_soon_threadsafe,
            functools.partial(_on_hangup, self._parts.reloader, self._signals, _terminal()),
        )
        # The loop's end would remove a handler of the loop, and SIGHUP would then end the process.
        signal.signal(signal.SIGHUP, lambda _number, _frame: hung_up())

    # The end

    async def _drain(self) -> None:
        """Wait until all requests have ended, for `drain_s` at most. A signal cuts this short."""
        fleet = self._parts.fleet
        drain_s = fleet.settings.gateway.drain_s
        logger.info("Draining for up to %g s; another signal cuts it short", drain_s)
        self._notifier.stopping(f"Drains for up to {drain_s:g} s, then ends the workers")
        drain = asyncio.create_task(fleet.drain(drain_s))
        await _first_of(drain, self._signals)
        drain.cancel()

    async def _stop(self, serving: asyncio.Task[None]) -> None:
        parts = self._parts
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        parts.fleet.refuse_all()
        await parts.mailbox.close()
        await parts.reloader.close()
        await parts.pulls.close()
        await parts.checks.close()
        await parts.last_used.close(lambda: parts.fleet.roster.everyone)
        await parts.recorder.close()
        await parts.fleet.stop()
        await self._close_connections(serving)

    async def _serve_last_clients(self, departure: Departure, serving: asyncio.Task[None]) -> None:
        """Serve the clients that are still connected here while the successor serves, then end."""
        await departure.serve_last_clients()
        await self._parts.reloader.close()
        await self._parts.mailbox.close()
        await self._close_connections(serving)
        await departure.finish()
        logger.info("All clients here are served: the next gateway goes on alone")

    async def _close_connections(self, serving: asyncio.Task[None]) -> None:
        self._server.should_exit = True
        await self._handshakes.cancel_all()
        await serving
        await self._background.cancel_all()
        if self._parts.spans is not None:
            await self._parts.spans.close()


async def _resume_pulls(takeover: Takeover, pulls: Pulls) -> None:
    """Go on with pulls once the gateway before this one has ended them."""
    await takeover.released.wait()
    await pulls.resume()


async def _either(serving: asyncio.Task[None], replaced: asyncio.Event) -> None:
    """Wait for the end of serving, or for another gateway to serve."""
    waiting = asyncio.create_task(replaced.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if serving.done():
        await serving


def _collect_rarely() -> None:
    """Make garbage collections rare. Present objects stay until the end, and nearly all later
    objects are freed without the collector. By default it would run after each few hundred tokens.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_UNTIL_COLLECTION)


def _terminal() -> int | None:
    """The descriptor of the terminal that the process was started from, if there is one."""
    descriptor = sys.stderr.fileno()
    return descriptor if os.isatty(descriptor) else None


def _on_hangup(reloader: Reloader, signals: asyncio.Queue[int], terminal: int | None) -> None:
    """Read the configuration again, or end if the signal means that the terminal was closed."""
    if terminal is not None:
        try:
            os.tcgetpgrp(terminal)
        except OSError:
            signals.put_nowait(signal.SIGHUP)
            return
    reloader.reload_soon()


async def _first_of(task: asyncio.Task[None], signals: asyncio.Queue[int]) -> int | None:
    """Wait for the task or for a signal. Returns the signal; raises the exception of the task."""
    signalled = asyncio.create_task(signals.get())
    await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
    received = signalled.result() if signalled.done() else None
    if received is not None:
        logger.info("Received %s", signal.Signals(received).name)
    signalled.cancel()
    if task.done():
        await task
    return received


_MOST_NAMED: Final = 8


def _first_steps(address: str, models: Sequence[ModelSupervisor]) -> str:
    """Sentences for whoever has started the gateway."""
    page = f"Its page is {address}/ui."
    if not models:
        return f"{page} It has no model yet: `bulkhead run` in another terminal finds one."
    ids = [supervisor.model.id for supervisor in models]
    more = f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else ""
    return (
        f"{page} Its models are {', '.join(ids[:_MOST_NAMED])}{more}. To chat, type in another "
        f"terminal: bulkhead chat {ids[0]}"
    )
