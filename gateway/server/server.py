"""The gateway's process: what it is made of, and what is left of it in the end."""

from __future__ import annotations

import functools
import logging
import os
import resource
import socket
import sys
import time
from collections.abc import Callable

import uvloop

from gateway.access.keys import ApiKeys
from gateway.config.machine_rules import network_cautions
from gateway.config.model import models_of
from gateway.config.read import Configuration
from gateway.http.access_log import spans
from gateway.http.app import Parts
from gateway.http.connection_limits import ConnectionLimiter, capacity
from gateway.http.kept import ChatFamily
from gateway.http.responses import ResponseFamily
from gateway.library.finder import Finder
from gateway.library.library import LastUsed, Library
from gateway.library.pulls import Pulls
from gateway.mailbox.entry import Api
from gateway.mailbox.jobs import AnswerFamily
from gateway.mailbox.mailbox import Mailbox
from gateway.memory.fitting import budget_bytes
from gateway.memory.leak_check import leak_check_at_start
from gateway.models.fleet import Fleet, FleetStart
from gateway.models.reload import Reloader
from gateway.server.departure import Departure, StandInChannel
from gateway.server.serving import GatewayServer
from gateway.server.starts import StartRecord
from gateway.server.takeover import Inheritance, Takeover
from gateway.server.upgrader import Upgrader
from gateway.system.notify import Notifier
from gateway.system.state_dir import Address, StateDir, near_url, write_address
from gateway.system.tls import Certificates
from gateway.workers.leftovers import WorkerRecords, sweep

logger = logging.getLogger(__name__)


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
    keeper = None if inheritance is None else StandInChannel(inheritance.keeper)

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
            FleetStart(
                records,
                swept,
                leak_check,
                start.caution,
                1 if takeover is None else takeover.estate.incarnation,
            ),
        )
        reloader = Reloader(read, configuration, fleet, notifier, certificates, finder.with_found)
        pulls = Pulls(fleet, reloader, state_dir.pulls_path)
        last_used = LastUsed(state_dir.used_path)
        library = Library(finder, fleet, reloader, pulls, last_used)
        families: dict[Api, AnswerFamily] = {"chat": ChatFamily(), "responses": ResponseFamily()}
        limiter = ConnectionLimiter(
            functools.partial(_capacity, fleet),
            lambda: fleet.settings.gateway.max_connections_per_address,
        )
        mailbox = Mailbox(state_dir.mailbox_path, fleet, families, keys, limiter.bodies)
        parts = Parts(
            fleet, reloader, mailbox, keys, limiter, pulls, library, last_used, spans(os.environ)
        )
        upgrader = Upgrader(parts, listener.dup(), state_dir, notifier, keeper, takeover, announce)
        await GatewayServer(parts, listener, notifier, certificates, takeover, upgrader).run()
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


def _capacity(fleet: Fleet) -> int:
    """How many connections there may be at present."""
    settings = fleet.settings
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return capacity(
        settings.gateway.max_connections,
        sys.maxsize if files == resource.RLIM_INFINITY else files,
        len(settings.models) + settings.workers.spare,
    )
