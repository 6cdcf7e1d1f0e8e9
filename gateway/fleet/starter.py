"""Where workers come from: a spare if there is one, a new process otherwise."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Final

import zmq

from gateway.config.in_force import InForce
from gateway.events import EventLog, Kind
from gateway.fleet.spares import Spares
from gateway.model.model import Model
from gateway.process.records import WorkerRecords
from gateway.process.worker import Listener, Worker
from gateway.process.worker_log import WorkerLog
from gateway.state.state_dir import StateDir

# Libzmq aborts the process if it finds no descriptor for a worker that connects (ipc_listener.cpp),
# so none is started into a shortage.
_ROOM: Final = 16


class Starter:
    """Starts all workers of a gateway and numbers them: no two incarnations share a number."""

    def __init__(
        self, in_force: InForce, state_dir: StateDir, records: WorkerRecords, events: EventLog
    ) -> None:
        self._state_dir = state_dir
        self._events = events
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # ZeroMQ starts its threads with the first socket, and aborts the process if it can't.
        self._context.socket(zmq.PAIR).close()
        self._incarnations = itertools.count(1)
        self._records = records
        self._spare_log = WorkerLog(state_dir.spare_log_path)
        self._spares = Spares(
            in_force,
            lambda supervisor: self._new(
                None, self._spare_log, supervisor, name="spare", spare=True
            ),
            events,
        )

    @property
    def spares(self) -> list[Worker]:
        return self._spares.workers

    def start(self, model: Model, log: WorkerLog, supervisor: Listener) -> Worker:
        """A worker for this model; what it says from now on, its hello first, goes to `supervisor`.

        Raises:
            OSError: its interpreter can't be started.
        """
        python = model.settings.interpreter
        adopted = self._spares.take() if python is None else None
        if adopted is None:
            worker = self._new(python, log, supervisor, name=model.id, spare=False)
            kind: Kind = "start"
        else:
            worker, hello = adopted
            worker.adopt(supervisor, log)
            asyncio.get_running_loop().call_soon(supervisor.worker_said, worker, hello)
            kind = "adopt"
        self._events.emit(kind, model.id, pid=worker.pid, incarnation=worker.incarnation)
        return worker

    def tick(self, now: float, *, spares: int, loading: bool) -> None:
        """To be called a few times a second. Memory has room for so many spares; `loading` says
        that a model needs the machine.
        """
        self._spares.tick(now, at_most=spares, loading=loading)

    async def end_spares(self) -> None:
        await self._spares.close()

    def close(self) -> None:
        """To be called when no worker is left."""
        self._spare_log.close()
        self._context.destroy(linger=0)

    def _new(
        self,
        python: str | None,
        log: WorkerLog,
        supervisor: Listener,
        *,
        name: str,
        spare: bool,
    ) -> Worker:
        _check_room()
        return Worker(
            self._context,
            self._state_dir,
            log,
            self._records,
            supervisor,
            incarnation=next(self._incarnations),
            name=name,
            python=python,
            spare=spare,
        )


def _check_room() -> None:
    """Raises: OSError if there aren't some descriptors left."""
    opened: list[int] = []
    try:
        opened.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_ROOM))
    finally:
        for each in opened:
            os.close(each)
