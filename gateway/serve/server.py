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

from gateway.api.app import Parts, build_app
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
from gateway.serve.uvicorn_server import Server
from gateway.state.address import Address, near_url, write_address
from gateway.state.state_dir import StateDir
from gateway.system.tasks import Tasks
from gateway.telemetry.spans import spans
from gateway.tls.certificates import Certificates
from gateway.url import url

logger = logging.getLogger(__name__)

# For connections that are still open once every request has ended: idle clients, log followers.
_CLOSE_CONNECTIONS_S: Final = 1
_OBJECTS_UNTIL_COLLECTION: Final = 10_000


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
        door = Door(
            functools.partial(_capacity, fleet),
            lambda: fleet.settings.gateway.max_connections_per_address,
        )
        parts = Parts(
            fleet, reloader, mailbox, keys, door, pulls, library, last_used, spans(os.environ)
        )
        await _serve(parts, listener, notifier, certificates)

    for caution in network_cautions(settings.gateway):
        logger.warning("%s", caution)
    host, port = listener.getsockname()[:2]
    near = near_url(host, port, tls=certificates is not None)
    shown = None if certificates is None else str(certificates.served)
    write_address(state_dir, Address(near, os.getpid(), shown))
    uvloop.run(serve())
    state_dir.address_path.unlink(missing_ok=True)
    start.ended_in_order()
    state_dir.release()


async def _offer(reloader: Reloader, repository: str) -> str | None:
    """The id by which a model that was pulled can be used."""
    await reloader.rediscover()
    for model_id, located in reloader.present.located.items():
        if located.path == repository:
            return model_id
    return None


async def _serve(
    parts: Parts,
    listener: socket.socket,
    notifier: Notifier,
    certificates: Certificates | None,
) -> None:
    fleet, reloader, mailbox, keys = parts.fleet, parts.reloader, parts.mailbox, parts.keys
    address = url(*listener.getsockname()[:2], tls=certificates is not None)
    signals: asyncio.Queue[int] = asyncio.Queue()
    server = Server(
        uvicorn.Config(
            build_app(parts),
            http=functools.partial(Connection, door=parts.door),  # type: ignore[arg-type]
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
    parts.last_used.start(lambda: fleet.roster.everyone)
    await parts.pulls.resume()
    _collect_rarely()
    # The line that scripts wait for; it alone goes to stdout.
    print(f"Bulkhead serves on {address}", flush=True)
    notifier.ready(fleet.caution or f"Serves on {address}")
    background = Tasks("server")
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
    await parts.pulls.close()
    await parts.last_used.close(lambda: fleet.roster.everyone)
    await fleet.stop()
    server.should_exit = True
    await serving
    await background.cancel_all()
    await keys.keep_accounts()
    if parts.spans is not None:
        await parts.spans.close()
    logger.info("Stopped")


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


async def _first_of(task: asyncio.Task[None], signals: asyncio.Queue[int]) -> None:
    """Wait for the end of the task or for a signal; raises what the task raised."""
    signalled = asyncio.create_task(signals.get())
    await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
    if signalled.done():
        logger.info("Received %s", signal.Signals(signalled.result()).name)
    signalled.cancel()
    if task.done():
        await task
