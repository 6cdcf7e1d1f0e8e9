"""The gateway process: from a bound socket to an orderly end."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Final

import uvicorn
import uvloop

from gateway.access.keys import ApiKeys
from gateway.config.machine_rules import network_cautions
from gateway.config.model import models_of
from gateway.config.read import Configuration
from gateway.http.app import Parts, build_app
from gateway.http.chat.kept import ChatFamily
from gateway.http.connection.capacity import capacity
from gateway.http.connection.connection import Connection
from gateway.http.connection.door import Door
from gateway.http.connection.handshake import Handshake
from gateway.http.responses.family import ResponseFamily
from gateway.http.spans import spans
from gateway.library.finder import Finder
from gateway.library.library import LastUsed, Library
from gateway.library.pulls import Pulls
from gateway.mailbox.entry import Api
from gateway.mailbox.jobs import AnswerFamily
from gateway.mailbox.mailbox import Mailbox
from gateway.memory.budget import budget_bytes
from gateway.memory.leak_check import leak_check_at_start
from gateway.models.fleet import Fleet
from gateway.models.reload import Reloader
from gateway.server.starts import StartRecord
from gateway.server.upgrade.departure import Departure
from gateway.server.upgrade.inheritance import Inheritance
from gateway.server.upgrade.keeper import Keeper
from gateway.server.upgrade.takeover import CannotTakeOverError, Takeover
from gateway.server.upgrade.upgrader import Upgrader
from gateway.server.uvicorn_server import Server
from gateway.system.notation import url
from gateway.system.notify import Notifier
from gateway.system.processes import ProcessGoneError
from gateway.system.state_dir import Address, StateDir, near_url, write_address
from gateway.system.tasks import Tasks
from gateway.system.tls import Certificates
from gateway.workers.leftovers import WorkerRecords, sweep

logger = logging.getLogger(__name__)

# For connections that are still open once every request has ended: idle clients, log followers.
_CLOSE_CONNECTIONS_S: Final = 1
_OBJECTS_UNTIL_COLLECTION: Final = 10_000


def run(
    read: Callable[[], Configuration],
    configuration: Configuration,
    state_dir: StateDir,
    listener: socket.socket,
    keys: ApiKeys,
    certificates: Certificates | None,
    finder: Finder,
    inheritance: Inheritance | None,
) -> Departure | None:
    """Serve until SIGTERM or SIGINT, drain, stop the workers; a second signal cuts the drain. What
    comes back says that another gateway serves, and what this process is to become.

    On SIGHUP the configuration is read again, by `read`. On SIGUSR2 another gateway takes over, as
    this one does by an `inheritance`.
    """
    settings = configuration.settings
    budget = budget_bytes(settings.memory)
    records = WorkerRecords(state_dir.workers)
    notifier = Notifier.from_environment(os.environ)
    takes_over = inheritance is not None
    start = StartRecord(state_dir.starts_path, time.time(), takes_over=takes_over)
    # The workers of the gateway that is replaced are no leftovers.
    swept = [] if takes_over else sweep(records)
    leak_check = leak_check_at_start(
        state_dir.stranded_path, follows_crash=start.follows_crash, takes_over=takes_over
    )
    host, port = listener.getsockname()[:2]
    near = near_url(host, port, tls=certificates is not None)
    shown = None if certificates is None else str(certificates.served)
    keeper = None if inheritance is None else Keeper(inheritance.keeper)

    def announce() -> None:
        state_dir.sign()
        write_address(state_dir, Address(near, os.getpid(), shown))

    async def serve() -> Upgrader | None:
        takeover = None
        if inheritance is not None:
            takeover = await Takeover.begin(inheritance)
            if takeover is None:
                return None
        fleet = Fleet(
            models_of(configuration),
            settings,
            budget,
            state_dir,
            records,
            swept,
            leak_check,
            start.caution,
            1 if takeover is None else takeover.estate.incarnation,
        )
        reloader = Reloader(read, configuration, fleet, notifier, certificates, finder.with_found)
        pulls = Pulls(fleet, reloader, state_dir.pulls_path)
        last_used = LastUsed(state_dir.used_path)
        library = Library(finder, fleet, reloader, pulls, last_used)
        families: dict[Api, AnswerFamily] = {"chat": ChatFamily(), "responses": ResponseFamily()}
        door = Door(
            functools.partial(_capacity, fleet),
            lambda: fleet.settings.gateway.max_connections_per_address,
        )
        mailbox = Mailbox(state_dir.mailbox_path, fleet, families, keys, door.bodies)
        parts = Parts(
            fleet, reloader, mailbox, keys, door, pulls, library, last_used, spans(os.environ)
        )
        upgrader = Upgrader(parts, listener.dup(), state_dir, notifier, keeper, takeover, announce)
        await _serve(parts, listener, notifier, certificates, takeover, upgrader)
        return upgrader

    for caution in network_cautions(settings.gateway):
        logger.warning("%s", caution)
    if not takes_over:
        announce()
    upgrader = uvloop.run(serve())
    if upgrader is None:
        # The gateway before this one goes on.
        os._exit(1)
    if upgrader.departure is not None:
        return upgrader.departure
    state_dir.address_path.unlink(missing_ok=True)
    start.ended_in_order()
    state_dir.release()
    if keeper is not None:
        keeper.end(0)
    return None


async def _serve(
    parts: Parts,
    listener: socket.socket,
    notifier: Notifier,
    certificates: Certificates | None,
    takeover: Takeover | None,
    upgrader: Upgrader,
) -> None:
    fleet, reloader, mailbox, keys = parts.fleet, parts.reloader, parts.mailbox, parts.keys
    address = url(*listener.getsockname()[:2], tls=certificates is not None)
    signals: asyncio.Queue[int] = asyncio.Queue()
    handshakes = Tasks("connections")
    protocol = functools.partial(Connection, door=parts.door)
    secure = certificates and functools.partial(
        Handshake, door=parts.door, context=certificates.context, tasks=handshakes
    )
    server = Server(
        uvicorn.Config(
            build_app(parts, upgrader.upgrade),
            http=secure or protocol,  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=_CLOSE_CONNECTIONS_S,
        ),
        signals,
    )
    if takeover is not None:
        try:
            takeover.restore(fleet, keys, mailbox)
            await takeover.settle(fleet)
        except (CannotTakeOverError, ProcessGoneError, OSError) as error:
            await takeover.fail(str(error))
            os._exit(1)
        fleet.start(preload=False)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.until_started(serving)
    background = Tasks("server")
    if takeover is None:
        fleet.start()
        mailbox.start()
        await parts.pulls.resume()
        # The line that scripts wait for; it alone goes to stdout.
        print(f"Bulkhead serves on {address}", flush=True)
    else:
        mailbox.start()
        upgrader.announce()
        takeover.serve(fleet, server, keys, mailbox)
        background.start(_resume_pulls(takeover, parts.pulls), "pulls")
    fleet.say_absent(reloader.present.absent)
    fleet.disks.start(lambda: fleet.settings.discovery.discover, reloader.rediscover)
    parts.last_used.start(lambda: fleet.roster.everyone)
    background.start(reloader.warn_of_groups(), "groups")
    _collect_rarely()
    notifier.ready(fleet.caution or f"Serves on {address}")
    parts.door.watch(background)
    keys.watch(background)
    if notifier.period_s is not None:
        background.keep(notifier.sign_of_life, "watchdog", notifier.period_s)
    hung_up = functools.partial(
        asyncio.get_running_loop().call_soon_threadsafe,
        functools.partial(_on_hangup, reloader, signals, _terminal()),
    )
    # The loop's own way would end with the default action, which is to die of it.
    signal.signal(signal.SIGHUP, lambda _number, _frame: hung_up())
    upgrader.begin(server, signals)
    received = await _first_of(asyncio.create_task(_either(serving, upgrader.left)), signals)
    await upgrader.abandon()
    if (departure := upgrader.departure) is not None:
        if received is not None:
            departure.hand_on(received, None)
        await _see_out(parts, server, serving, departure, background)
        await upgrader.close()
        if takeover is not None:
            await takeover.close()
        return
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
    await parts.pulls.close()
    await parts.last_used.close(lambda: fleet.roster.everyone)
    await fleet.stop()
    server.should_exit = True
    await handshakes.cancel_all()
    await serving
    await background.cancel_all()
    await upgrader.close()
    if takeover is not None:
        await takeover.close()
    await keys.keep_accounts()
    if parts.spans is not None:
        await parts.spans.close()
    logger.info("Stopped")


async def _resume_pulls(takeover: Takeover, pulls: Pulls) -> None:
    """Once the gateway before this one has ended its own."""
    await takeover.released.wait()
    await pulls.resume()


async def _either(serving: asyncio.Task[None], left: asyncio.Event) -> None:
    """Wait for the end of serving, or for another gateway to serve."""
    waiting = asyncio.create_task(left.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if serving.done():
        await serving


async def _see_out(
    parts: Parts,
    server: Server,
    serving: asyncio.Task[None],
    departure: Departure,
    background: Tasks,
) -> None:
    """Another gateway serves: serve those who are connected here, and go."""
    await departure.see_out()
    await parts.reloader.close()
    await parts.mailbox.close()
    server.should_exit = True
    await serving
    await background.cancel_all()
    if parts.spans is not None:
        await parts.spans.close()
    await departure.say_farewell()
    logger.info("Everybody here is served: the next gateway goes on alone")


def _collect_rarely() -> None:
    """What is there now stays until the end, and nearly all that comes later is freed without the
    collector: by default it would look for cycles after each few hundred tokens.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_UNTIL_COLLECTION)


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


async def _first_of(task: asyncio.Task[None], signals: asyncio.Queue[int]) -> int | None:
    """Wait for the end of the task or for a signal, and say which; raises what the task raised."""
    signalled = asyncio.create_task(signals.get())
    await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
    received = signalled.result() if signalled.done() else None
    if received is not None:
        logger.info("Received %s", signal.Signals(received).name)
    signalled.cancel()
    if task.done():
        await task
    return received
