"""The agent's process: from a bound socket to an orderly end."""

from __future__ import annotations

import asyncio
import functools
import logging
import resource
import signal
import socket
import sys
from typing import Final

import uvicorn
import uvloop
from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from gateway.http.connection.capacity import capacity
from gateway.http.connection.door import Door
from gateway.http.connection.handshake import Handshake
from gateway.http.errors import on_defect, on_http_exception, on_refusal
from gateway.server.agent.doorkeeper import Doorkeeper
from gateway.server.agent.routes import ROUTES
from gateway.server.agent.sessions import MOST_RANKS, Sessions
from gateway.server.uvicorn_server import Server
from gateway.system.refusal import Refusal
from gateway.system.state_dir import StateDir, near_url
from gateway.system.tasks import Faults, Tasks
from gateway.system.tls import Certificates
from gateway.workers.leftovers import WorkerRecords, sweep
from gateway.workers.worker_log import WorkerLog

logger = logging.getLogger(__name__)

# Each gateway has a few: its turn, and what it asks beside.
_MOST_CONNECTIONS: Final = 256
_MOST_FROM_ONE_ADDRESS: Final = 64
_CLOSE_CONNECTIONS_S: Final = 1


class Terms(Struct, frozen=True):
    """What an agent was told: bytes for all ranks, and how long they live without a word of their
    gateway.
    """

    budget_bytes: int
    lease_s: float


def run(
    terms: Terms,
    state_dir: StateDir,
    listener: socket.socket,
    key: str,
    certificates: Certificates,
) -> None:
    """Serve until SIGTERM or SIGINT, then end all ranks."""
    records = WorkerRecords(state_dir.workers)
    sweep(records)

    async def serve() -> None:
        log = WorkerLog(state_dir.ranks_log_path)
        try:
            sessions = Sessions(terms.budget_bytes, terms.lease_s, log, records)
            await _serve(sessions, listener, key, certificates)
        finally:
            log.close()

    uvloop.run(serve())
    state_dir.release()


async def _serve(
    sessions: Sessions, listener: socket.socket, key: str, certificates: Certificates
) -> None:
    Faults().watch(asyncio.get_running_loop())
    door = Door(_capacity, lambda: _MOST_FROM_ONE_ADDRESS)
    app = Starlette(
        routes=ROUTES,
        exception_handlers={
            Refusal: on_refusal,
            HTTPException: on_http_exception,
            Exception: on_defect,
        },
    )
    app.state.sessions = sessions
    signals: asyncio.Queue[int] = asyncio.Queue()
    handshakes = Tasks("connections")
    server = Server(
        uvicorn.Config(
            Doorkeeper(app, key),
            http=functools.partial(  # type: ignore[arg-type]
                Handshake, door=door, context=certificates.context, tasks=handshakes
            ),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=_CLOSE_CONNECTIONS_S,
        ),
        signals,
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.until_started(serving)
    background = Tasks("agent's server")
    door.watch(background)
    sessions.begin()
    # The line that scripts wait for; it alone goes to stdout.
    host, port = listener.getsockname()[:2]
    print(f"Bulkhead's agent serves on {near_url(host, port, tls=True)}", flush=True)
    signalled = asyncio.create_task(signals.get())
    await asyncio.wait({serving, signalled}, return_when=asyncio.FIRST_COMPLETED)
    if signalled.done():
        logger.info("Received %s", signal.Signals(signalled.result()).name)
    signalled.cancel()
    await sessions.end()
    server.should_exit = True
    await handshakes.cancel_all()
    await serving
    await background.cancel_all()
    logger.info("Stopped")


def _capacity() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return capacity(
        _MOST_CONNECTIONS, sys.maxsize if files == resource.RLIM_INFINITY else files, MOST_RANKS
    )
