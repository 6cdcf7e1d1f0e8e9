"""The agent's process: it serves gateways that have its key, until a signal."""

from __future__ import annotations

import asyncio
import functools
import hmac
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
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.access.api_key import digest_of
from gateway.access.caller import shown_key
from gateway.http.access_log import begin_record
from gateway.http.connection import Connection
from gateway.http.connection_limits import ConnectionLimiter, Handshake, capacity
from gateway.http.errors import error_response, on_defect, on_http_exception, on_refusal
from gateway.server.agent_routes import ROUTES
from gateway.server.agent_sessions import MOST_RANKS, Sessions
from gateway.server.uvicorn_server import UvicornServer
from gateway.system.refusal import Refusal
from gateway.system.state_dir import StateDir, near_url
from gateway.system.tasks import Faults, Tasks
from gateway.system.tls import Certificates
from gateway.workers.leftovers import WorkerRecords, sweep
from gateway.workers.worker_log import WorkerLog

_REFUSED: Final = "The agent's key is needed: send Authorization: Bearer KEY."


class AgentKeyMiddleware:
    """Goes around the application."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._digest = digest_of(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin_record(scope)
        shown = shown_key(scope["headers"])
        # Of digests, so that the time tells nothing of the key, not even its length.
        if shown is None or not hmac.compare_digest(digest_of(shown), self._digest):
            refusal = Refusal("invalid_api_key", _REFUSED)
            await error_response(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)


logger = logging.getLogger(__name__)

# Each gateway has a few: its turn, and what it asks beside.
_MOST_CONNECTIONS: Final = 256
_MOST_FROM_ONE_ADDRESS: Final = 64
_CLOSE_CONNECTIONS_S: Final = 1


class AgentTerms(Struct, frozen=True):
    """What an agent was told: bytes for all ranks, and how long they live without a word of their
    gateway.
    """

    budget_bytes: int
    lease_s: float


def run(
    terms: AgentTerms,
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
    limiter = ConnectionLimiter(_capacity, lambda: _MOST_FROM_ONE_ADDRESS)
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
    server = UvicornServer(
        uvicorn.Config(
            AgentKeyMiddleware(app, key),
            http=functools.partial(  # type: ignore[arg-type]
                Handshake,
                Connection,
                limiter=limiter,
                context=certificates.context,
                tasks=handshakes,
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
    limiter.watch(background)
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
