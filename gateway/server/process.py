"""The gateway's process: its parts, the record of its starts, and its last steps once `serving` has
drained and stopped everything.
"""

from __future__ import annotations

import functools
import logging
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import uvloop
from msgspec import Struct

from gateway.access.keys import ApiKeys
from gateway.config.machine_rules import network_cautions
from gateway.config.model import models_of
from gateway.config.read import Configuration
from gateway.history.recorder import Recorder
from gateway.http.app import Parts
from gateway.http.openai.responses import ResponseFamily
from gateway.http.openai.stored_answers import ChatFamily
from gateway.http.passing.forms import FormFiles
from gateway.http.wire.access_log import spans
from gateway.http.wire.connection_limits import ConnectionLimiter, capacity
from gateway.library.checks import Checks
from gateway.library.finder import Finder
from gateway.library.library import LastUsed, Library
from gateway.library.pulls import Pulls
from gateway.mailbox.entry import Api
from gateway.mailbox.jobs import AnswerFamily
from gateway.mailbox.mailbox import Mailbox
from gateway.memory.fitting import Learned, budget_bytes
from gateway.memory.forecast import enter_pinned
from gateway.memory.leak_check import leak_check_at_start
from gateway.models.fleet import Fleet, FleetStart
from gateway.models.reload import Reloader
from gateway.server.serving import GatewayServer
from gateway.server.upgrade.departure import Departure
from gateway.server.upgrade.stand_in import StandInChannel
from gateway.server.upgrade.takeover import Inheritance, Takeover
from gateway.server.upgrade.upgrade import Upgrader
from gateway.system.state_dir import Address, StateDir, UncleanStarts, near_url, write_address
from gateway.system.state_file import read_state, write_state
from gateway.system.systemd import Notifier
from gateway.system.tls import Certificates
from gateway.workers.orphans import WorkerRecords, end_orphans

logger = logging.getLogger(__name__)

# Starts in so many seconds count together. A load of hundreds of gigabytes takes minutes, so the
# starts of a loop of crashes may be minutes apart.
WINDOW_S: Final = 1800.0
LIMIT: Final = 3


def recent(unclean: Sequence[float], now: float) -> list[float]:
    """The starts of `unclean` that are recent enough to count. All times are Unix times in seconds,
    since they must stay valid over a boot: a model that panics the machine (mlx#3186) does so again
    after the boot.
    """
    return [start for start in unclean if abs(now - start) < WINDOW_S]


def caution(unclean: Sequence[float], now: float) -> str | None:
    """Why no model should be preloaded; None if models may be preloaded.

    `unclean` has the times of the starts since the last orderly end, without the present start.
    """
    count = len(recent(unclean, now))
    if count < LIMIT:
        return None
    return (
        f"the last {count} starts within {WINDOW_S / 60:.0f} min did not end in order, so no model "
        "was preloaded; requests and `bulkhead load` load as always"
    )


class StartRecord:
    """The record of the starts since the last orderly end, which shows whether the gateway crashes
    again and again. The present start is recorded at once, since a crash leaves no later chance.
    """

    def __init__(self, path: Path, now: float, *, takes_over: bool = False) -> None:
        """A gateway that `takes_over` from another gateway records no start of its own."""
        self._path = path
        if takes_over:
            self.follows_crash, self.caution = False, None
            return
        record = read_state(path, UncleanStarts) or UncleanStarts()
        # Whether the gateway before this one crashed, was killed, or lost its machine.
        self.follows_crash = bool(record.at)
        self.caution = caution(record.at, now)
        write_state(path, UncleanStarts((*recent(record.at, now), now)))

    def ended_in_order(self) -> None:
        """Empty the record, so that the next start finds no earlier starts."""
        write_state(self._path, UncleanStarts())


class GatewaySetup(Struct, frozen=True):
    """The parts with which a gateway starts. `read` reads the configuration again. `certificates`
    is None for plain HTTP. `inheritance` is None if this gateway replaces no other. With
    `counts_pinned` estimates count pinned models as loaded, though none is.
    """

    read: Callable[[], Configuration]
    configuration: Configuration
    state_dir: StateDir
    listener: socket.socket
    keys: ApiKeys
    certificates: Certificates | None
    finder: Finder
    inheritance: Inheritance | None
    counts_pinned: bool = False


def run(setup: GatewaySetup) -> Departure | None:
    """Serve until SIGTERM or SIGINT, then drain and stop the workers. A second signal cuts the
    drain short. On SIGHUP the configuration is read again.

    On SIGUSR2 another gateway takes over. The function then returns a departure, by which the
    process ends or stands in for the other gateway.
    """
    return _GatewayProcess(setup).run()


class _GatewayProcess:
    def __init__(self, setup: GatewaySetup) -> None:
        self._setup = setup
        state_dir, takes_over = setup.state_dir, setup.inheritance is not None
        self._settings = setup.configuration.settings
        self._budget_bytes = budget_bytes(self._settings.memory)
        self._records = WorkerRecords(state_dir.workers)
        self._notifier = Notifier.from_environment(os.environ)
        self._start = StartRecord(state_dir.starts_path, time.time(), takes_over=takes_over)
        # The workers of the gateway that is replaced are no leftovers.
        self._swept = [] if takes_over else end_orphans(self._records)
        self._leak_check = leak_check_at_start(
            state_dir.stranded_path, follows_crash=self._start.follows_crash, takes_over=takes_over
        )
        host, port = setup.listener.getsockname()[:2]
        certificates, inheritance = setup.certificates, setup.inheritance
        self._address = Address(
            near_url(host, port, tls=certificates is not None),
            os.getpid(),
            None if certificates is None else str(certificates.served),
        )
        self._stand_in = None if inheritance is None else StandInChannel(inheritance.stand_in)

    def run(self) -> Departure | None:
        for sentence in network_cautions(self._settings.gateway):
            logger.warning("%s", sentence)
        if self._setup.inheritance is None:
            self._announce()
        upgrader = uvloop.run(self._serve())
        if upgrader is None:
            # The gateway before this one goes on.
            os._exit(1)
        if upgrader.departure is not None:
            return upgrader.departure
        self._setup.state_dir.address_path.unlink(missing_ok=True)
        self._start.ended_in_order()
        self._setup.state_dir.release()
        if self._stand_in is not None:
            self._stand_in.end(0)
        return None

    async def _serve(self) -> Upgrader | None:
        """Serve until the end. Returns None if the gateway before this one goes on instead."""
        setup, takeover = self._setup, None
        if setup.inheritance is not None:
            takeover = await Takeover.receive(setup.inheritance)
            if takeover is None:
                return None
        parts = self._parts(1 if takeover is None else takeover.state.incarnation)
        upgrader = Upgrader(
            parts,
            setup.listener.dup(),
            setup.state_dir,
            self._notifier,
            self._stand_in,
            takeover,
            self._announce,
        )
        server = GatewayServer(
            parts, setup.listener, self._notifier, setup.certificates, takeover, upgrader
        )
        await server.run()
        return upgrader

    def _parts(self, first_incarnation: int) -> Parts:
        setup, state_dir = self._setup, self._setup.state_dir
        fleet = Fleet(
            models_of(setup.configuration),
            self._settings,
            self._budget_bytes,
            state_dir,
            FleetStart(
                self._records, self._swept, self._leak_check, self._start.caution, first_incarnation
            ),
        )
        if setup.counts_pinned:
            learned = Learned(state_dir.learned_path)
            enter_pinned(fleet.scheduler.admission.ledger, self._settings, learned)
        reloader = Reloader(
            setup.read,
            setup.configuration,
            fleet,
            self._notifier,
            setup.certificates,
            setup.finder.with_found,
        )
        checks = Checks(fleet)
        pulls = Pulls(fleet, reloader, checks, state_dir.pulls_path)
        last_used = LastUsed(state_dir.used_path)
        library = Library(setup.finder, fleet, reloader, pulls, last_used)
        families: dict[Api, AnswerFamily] = {"chat": ChatFamily(), "responses": ResponseFamily()}
        limiter = ConnectionLimiter(
            functools.partial(_capacity, fleet),
            lambda: fleet.settings.gateway.max_connections_per_address,
        )
        mailbox = Mailbox(state_dir.mailbox_path, fleet, families, setup.keys, limiter.bodies)
        return Parts(
            fleet,
            reloader,
            mailbox,
            setup.keys,
            limiter,
            pulls,
            checks,
            library,
            last_used,
            Recorder(state_dir.history_path, fleet),
            FormFiles(state_dir.sockets),
            spans(os.environ),
        )

    def _announce(self) -> None:
        """Write the pid and the address of this gateway into the state folder."""
        self._setup.state_dir.sign()
        write_address(self._setup.state_dir, self._address)


def _capacity(fleet: Fleet) -> int:
    """The most connections that the settings and the limit of open files allow at present."""
    settings = fleet.settings
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return capacity(
        settings.gateway.max_connections,
        sys.maxsize if files == resource.RLIM_INFINITY else files,
        len(settings.models) + settings.workers.spare,
        passes=fleet.roster.has_commands or bool(fleet.upstreams.by_name),
    )
