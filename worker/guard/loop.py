"""The main thread of a guard, which runs the server of a command. `Guard.run` repeats these steps:

1. Wait for an order of the gateway, a change of the server, or the time of the next heartbeat.
2. Send the messages that the gateway had no room for.
3. Carry out the gateway's orders: start the command, or stop.
4. Change to the next gateway once that has taken this guard over.
5. Send `Ready` once the server answers on its health path.
6. End if the server has ended.
7. Send a heartbeat once a second.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from typing import Final, NoReturn

from protocol.life import (
    Device,
    Drain,
    Heartbeat,
    Hello,
    LoadFailed,
    MlxMemory,
    Ready,
    RunCommand,
    Stop,
)
from protocol.messages import PROTOCOL_VERSION
from protocol.process import grace_s
from protocol.process_tree import held_bytes
from worker.guard.server import CommandServer, PlaceError, adopt_orphans
from worker.process.gateway import GatewayLink, ParentWatch, end_process, set_up_process

logger = logging.getLogger("guard")

_HEARTBEAT_S: Final = 1.0
# The looks at the server: often until it is ready, as requests wait for it.
_STARTING_S: Final = 0.05
_READY_S: Final = 2.0
# A server that computes in the thread that answers is silent for long.
_ANSWER_S: Final = 30.0
# Beyond the time that processes get to end by SIGTERM.
_SPARE_S: Final = 10.0


def run(address: str, key: bytes, parent_pid: int, incarnation: int, mark: str) -> NoReturn:
    """Serve the gateway until it orders a stop, or is gone, or the command ends. Then end all
    processes of the command, and this one. `key` opens the channel.
    """
    adopt_orphans()
    guard = Guard(address, key, incarnation, mark)
    set_up_process(guard.request_stop)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: guard.record_child())
    guard.watch = ParentWatch(parent_pid, guard.request_stop, guard.orphan_grace_s)
    try:
        status = guard.run()
    except Exception:
        logger.exception("The guard failed")
        status = 1
    finally:
        guard.end_server()
    end_process(status)


class HealthWatch:
    """Asks the server on its health path, in a thread. `step` counts its answers, and the last one
    came at `answered_at`. `wake` is called when the server is ready.
    """

    def __init__(self, server: CommandServer, link: GatewayLink) -> None:
        self.ready = False
        self.step = 0
        self.answered_at: float | None = None
        self._server = server
        self._link = link
        threading.Thread(target=self._watch, name="health", daemon=True).start()

    def _watch(self) -> None:
        while True:
            status = self._server.answers(_ANSWER_S)
            if status is not None:
                self.step += 1
                self.answered_at = time.monotonic()
            if not self.ready and self._server.is_ready(status):
                self.ready = True
                self._link.wake()
            time.sleep(_READY_S if self.ready else _STARTING_S)


class Guard:
    """Carries out the gateway's orders."""

    def __init__(self, address: str, key: bytes, incarnation: int, mark: str) -> None:
        self.watch: ParentWatch | None = None
        self._link = GatewayLink(address, key)
        # Beside the socket of the channel, where the next gateway removes what was left.
        self._socket_path = f"{address.removeprefix('ipc://')}.server"
        self._mark = mark
        self._server: CommandServer | None = None
        self._health: HealthWatch | None = None
        self._began_at = 0.0
        self._ready_sent = False
        self._stops = 0
        self._child_changed = False
        self._link.send(
            Hello(
                protocol_version=PROTOCOL_VERSION,
                pid=os.getpid(),
                incarnation=incarnation,
                python_version="",
                mlx_version="",
                mlx_lm_version="",
                device=Device(name="", architecture=""),
            )
        )

    def request_stop(self) -> None:
        """Ask for an end. A second call is in a hurry. Signal handlers and other threads may call
        this.
        """
        self._stops += 1
        self._link.wake()

    def record_child(self) -> None:
        """Look whether the server lives, as a child has changed its state. A signal handler calls
        this.
        """
        self._child_changed = True
        self._link.wake()

    def orphan_grace_s(self) -> float:
        held = 0 if self._server is None else held_bytes(self._server.processes())
        return grace_s(held) + _SPARE_S

    def run(self) -> int:
        """Run until the server is to end, or has ended. Returns the exit status of the guard:
        after an end of the server that of the server.
        """
        heartbeat_at = time.monotonic()
        while not self._stops:
            self._link.wait(max(0.0, heartbeat_at - time.monotonic()))
            self._link.send_unsent()
            self._read_gateway()
            if (parent_pid := self._link.switch_gateway()) is not None and self.watch is not None:
                self.watch.follow(parent_pid)
            self._send_ready()
            due = time.monotonic() >= heartbeat_at
            changed, self._child_changed = self._child_changed, False
            if self._server is not None and (due or changed):
                if changed:
                    self._server.reap()
                ready = self._health is not None and self._health.ready
                if not self._server.alive(ready=ready):
                    logger.error("%s", self._server.end_report())
                    return self._server.exit_code
            if due:
                heartbeat_at = time.monotonic() + _HEARTBEAT_S
                self._send_heartbeat()
        return 0

    def end_server(self) -> None:
        """End the server, while heartbeats aren't needed any more."""
        stops = self._stops
        if self._server is not None:
            self._server.end(lambda: self._stopped_again(stops))
        with contextlib.suppress(Exception):
            self._link.close()

    def _stopped_again(self, stops: int) -> bool:
        return self._stops > stops

    def _read_gateway(self) -> None:
        while (order := self._link.receive()) is not None:
            match order:
                case RunCommand():
                    self._start(order)
                case Stop():
                    self._stops += 1
                case Drain():
                    # The gateway waits for what runs, as requests don't come this way.
                    pass
                case _:
                    logger.warning("An order that is none for a guard: %s", type(order).__name__)

    def _start(self, order: RunCommand) -> None:
        self._began_at = time.monotonic()
        try:
            self._server = CommandServer(order, self._mark, self._socket_path)
        except PlaceError as error:
            logger.error("%s", error)
            self._link.send(LoadFailed(reason=f"{error}.", permanent=True))
            return
        self._health = HealthWatch(self._server, self._link)

    def _send_ready(self) -> None:
        if self._ready_sent or self._health is None or not self._health.ready:
            return
        assert self._server is not None
        self._ready_sent = True
        self._link.send(
            Ready(
                load_s=time.monotonic() - self._began_at,
                weight_bytes=0,
                context_tokens=0,
                fingerprint=self._mark,
                memory=MlxMemory(),
                address=self._server.address,
            )
        )

    def _send_heartbeat(self) -> None:
        if self._link.unsent:
            return
        health = self._health
        answered_at = None if health is None else health.answered_at
        self._link.send(
            Heartbeat(
                step=0 if health is None else health.step,
                step_age_s=None if answered_at is None else time.monotonic() - answered_at,
                active=0,
                waiting=0,
                memory=MlxMemory(),
            )
        )
