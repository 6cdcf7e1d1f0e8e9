"""The gateway process: from a bound socket to an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final, NamedTuple

import uvicorn
import uvloop

from gateway.api.app import build_app
from gateway.api.chat.kept import ChatFamily
from gateway.api.responses.family import ResponseFamily
from gateway.config.network import network_cautions
from gateway.config.read import Configuration
from gateway.edge.capacity import capacity
from gateway.edge.connection import Connection
from gateway.edge.door import Door
from gateway.fleet.fleet import Fleet
from gateway.hub.pulls import Pulls
from gateway.keys.keys import Keys
from gateway.library.finder import Finder
from gateway.library.last_used import LastUsed
from gateway.library.library import Library
from gateway.mailbox.entry import Api
from gateway.mailbox.family import Family
from gateway.mailbox.mailbox import Mailbox
from gateway.memory.budget import budget_bytes
from gateway.memory.stranded.at_start import stranded_at_start
from gateway.model.model import models_of
from gateway.process.records import WorkerRecords
from gateway.process.sweep import sweep
from gateway.serve.notify import Notifier
from gateway.serve.reload import Reloader
from gateway.serve.starts import StartRecord
from gateway.state.address import Address, near_url, write_address
from gateway.state.state_dir import StateDir
from gateway.system.tasks import Tasks
from gateway.tls.certificates import Certificates
from gateway.url import url

logger = logging.getLogger(__name__)

_BACKLOG: Final = 2048
# For connections that are still open once every request has ended: idle clients, log followers.
_CLOSE_CONNECTIONS_S: Final = 1
_START_S: Final = 10.0
# What uvicorn takes on every system that we run on.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class PortTakenError(Exception):
    """The address can't be bound; the text says why."""


def bind(host: str, port: int) -> socket.socket:
    """Listen on an address; on :: on those of IPv4, too.

    Raises:
        PortTakenError: somebody else listens there, or the address isn't this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both
        )
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise PortTakenError(
                f"{host} can't be listened on ({error.strerror}): it is no address of this "
                "machine. Choose another with --host."
            ) from error
        raise PortTakenError(
            f"Port {port} on {host} can't be used ({error.strerror}): another program has it. "
            "Choose another with --port."
        ) from error


def run(
    read: Callable[[], Configuration],
    configuration: Configuration,
    state_dir: StateDir,
    listener: socket.socket,
    keys: Keys,
    certificates: Certificates | None,
    finder: Finder,
) -> None:
    """Serve until SIGTERM or SIGINT, drain, stop the workers; a second signal cuts the drain.

    On SIGHUP the configuration is read again, by `read`.
    """
    settings = configuration.settings
    budget = budget_bytes(settings.memory)
    records = WorkerRecords(state_dir.workers)
    notifier = Notifier.from_environment(os.environ)
    start = StartRecord(state_dir.starts_path, time.time())
    swept = sweep(records)
    stranded = stranded_at_start(state_dir.stranded_path, follows_crash=start.follows_crash)

    async def serve() -> None:
        fleet = Fleet(
            models_of(configuration),
            settings,
            budget,
            state_dir,
            records,
            swept,
            stranded,
            start.caution,
        )
        reloader = Reloader(read, configuration, fleet, notifier, certificates, finder)
        pulls = Pulls(
            lambda: fleet.settings.hub,
            state_dir.pulls_path,
            fleet.events,
            fleet.outlook,
            functools.partial(_offer, reloader),
        )
        last_used = LastUsed(state_dir.used_path)
        library = Library(finder, fleet, reloader, pulls, last_used)
        families: dict[Api, Family] = {"chat": ChatFamily(), "responses": ResponseFamily()}
        mailbox = Mailbox(state_dir.mailbox_path, fleet, families, keys)
        shelf = Shelf(pulls, library, last_used)
        await _serve(fleet, reloader, mailbox, listener, notifier, keys, certificates, shelf)

    for caution in network_cautions(settings.gateway):
        logger.warning("%s", caution)
    host, port = listener.getsockname()[:2]
    near = near_url(host, port, tls=certificates is not None)
    shown = None if certificates is None else str(certificates.certificate)
    write_address(state_dir, Address(near, os.getpid(), shown))
    uvloop.run(serve())
    state_dir.address_path.unlink(missing_ok=True)
    start.ended_in_order()
    state_dir.release()


class _Server(uvicorn.Server):
    """Uvicorn, but signals start our own end: workers are stopped before the listener is. Once that
    has begun to be over, they are ignored for good, so that none becomes the exit status.
    """

    def __init__(self, config: uvicorn.Config, signals: asyncio.Queue[int]) -> None:
        super().__init__(config)
        self._signals = signals
        self._loop = asyncio.get_running_loop()
        self._started_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started_up.set()

    async def until_started(self, serving: asyncio.Task[None]) -> None:
        """From then on signals are ours: nobody who has read the address ends the process by one.

        Raises what `serving` raised, if it ended instead.
        """
        started = asyncio.create_task(self._started_up.wait())
        await asyncio.wait(
            {started, serving}, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED
        )
        started.cancel()
        if serving.done():
            await serving

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in _SIGNALS:
            signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._signals.put_nowait, sig)


class Shelf(NamedTuple):
    """Models on the disks, and those that come."""

    pulls: Pulls
    library: Library
    last_used: LastUsed


async def _offer(reloader: Reloader, repository: str) -> str | None:
    """The id by which a model that was pulled can be used."""
    await reloader.rediscover()
    for model_id, located in reloader.present.located.items():
        if located.path == repository:
            return model_id
    return None


async def _serve(
    fleet: Fleet,
    reloader: Reloader,
    mailbox: Mailbox,
    listener: socket.socket,
    notifier: Notifier,
    keys: Keys,
    certificates: Certificates | None,
    shelf: Shelf,
) -> None:
    address = url(*listener.getsockname()[:2], tls=certificates is not None)
    signals: asyncio.Queue[int] = asyncio.Queue()
    door = Door(
        functools.partial(_capacity, fleet),
        lambda: fleet.settings.gateway.max_connections_per_address,
    )
    server = _Server(
        uvicorn.Config(
            build_app(fleet, reloader, mailbox, keys, door, shelf.pulls, shelf.library),
            http=functools.partial(Connection, door=door),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=_CLOSE_CONNECTIONS_S,
            ssl_context_factory=None if certificates is None else lambda *_: certificates.context,
        ),
        signals,
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.until_started(serving)
    fleet.start()
    mailbox.start()
    shelf.last_used.start(lambda: fleet.roster.everyone)
    await shelf.pulls.resume()
    # The line that scripts wait for; it alone goes to stdout.
    print(f"Bulkhead serves on {address}", flush=True)
    notifier.ready(fleet.caution or f"Serves on {address}")
    background = Tasks("server")
    door.watch(background)
    keys.watch(background)
    if notifier.period_s is not None:
        background.keep(notifier.sign_of_life, "watchdog", notifier.period_s)
    hung_up = functools.partial(
        asyncio.get_running_loop().call_soon_threadsafe,
        functools.partial(_on_hangup, reloader, signals, _terminal()),
    )
    # The loop's own way would end with the default action, which is to die of it.
    signal.signal(signal.SIGHUP, lambda _number, _frame: hung_up())
    await _first_of(serving, signals)
    drain_s = fleet.settings.gateway.drain_s
    logger.info("Draining for up to %g s; another signal cuts it short", drain_s)
    notifier.stopping(f"Drains for up to {drain_s:g} s, then ends the workers")
    drain = asyncio.create_task(fleet.drain(drain_s))
    await _first_of(drain, signals)
    drain.cancel()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    fleet.refuse_all()
    await mailbox.close()
    await reloader.close()
    await shelf.pulls.close()
    await shelf.last_used.close(lambda: fleet.roster.everyone)
    await fleet.stop()
    server.should_exit = True
    await serving
    await background.cancel_all()
    await keys.keep_accounts()
    logger.info("Stopped")


def _capacity(fleet: Fleet) -> int:
    """How many connections there may be at present."""
    settings = fleet.settings
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return capacity(
        settings.gateway.max_connections,
        sys.maxsize if files == resource.RLIM_INFINITY else files,
        len(settings.models) + settings.workers.spare,
    )


def _terminal() -> int | None:
    """Where the process was started from, if that is a terminal."""
    descriptor = sys.stderr.fileno()
    return descriptor if os.isatty(descriptor) else None


def _on_hangup(reloader: Reloader, signals: asyncio.Queue[int], terminal: int | None) -> None:
    """Read the configuration again; but if the terminal is gone, that is what it says."""
    if terminal is not None:
        try:
            os.tcgetpgrp(terminal)
        except OSError:
            signals.put_nowait(signal.SIGHUP)
            return
    reloader.reload_soon()


async def _first_of(task: asyncio.Task[None], signals: asyncio.Queue[int]) -> None:
    """Wait for the end of the task or for a signal; raises what the task raised."""
    signalled = asyncio.create_task(signals.get())
    await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
    if signalled.done():
        logger.info("Received %s", signal.Signals(signalled.result()).name)
    signalled.cancel()
    if task.done():
        await task
