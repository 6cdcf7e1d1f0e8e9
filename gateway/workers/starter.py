"""Starts workers: adopts a spare if there is one, and starts a process otherwise."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Final

import zmq
from msgspec import Struct

from gateway.config.model import Model
from gateway.config.model_folders import expand_home
from gateway.config.model_settings import LOCAL
from gateway.config.tables import InForce
from gateway.memory.estimate import Estimate
from gateway.memory.weights import sharing
from gateway.system.child import ExitStatus
from gateway.system.events import EventLog, Kind
from gateway.system.memory import BackEnd, back_end
from gateway.system.state_dir import StateDir
from gateway.workers.followers import Followers, Plan
from gateway.workers.host import LocalHost, RankHost
from gateway.workers.link import Link
from gateway.workers.orphans import WorkerRecords
from gateway.workers.process import AdoptedProcess, ProcessOrder, WorkerProcess
from gateway.workers.report import WorkerState
from gateway.workers.spares import Spares
from gateway.workers.ssh_host import Hosts
from gateway.workers.worker import Listener, Worker
from gateway.workers.worker_log import WorkerLog
from protocol.channel import Keys, new_keys
from protocol.life import RankBackend

# No worker is started while fewer descriptors are left: libzmq aborts the process if it finds none
# for a worker that connects (ipc_listener.cpp).
_ROOM: Final = 16
# ZeroMQ asks a silent follower for a sign of life only every second.
_LEAST_SILENCE_S: Final = 3.0


class Channel(Struct, frozen=True):
    """A channel whose endpoint isn't open yet: its number, and the keys of both ends."""

    number: int
    workers_key: bytes
    gateways_key: bytes


class Starter:
    """Starts all workers of a gateway and numbers them: no two incarnations share a number."""

    def __init__(
        self,
        in_force: InForce,
        state_dir: StateDir,
        records: WorkerRecords,
        events: EventLog,
        room_bytes: Callable[[], tuple[int, int]],
        hosts: Hosts,
        first_incarnation: int,
    ) -> None:
        """`room_bytes` returns this machine's budget, and the free part of the budget."""
        self._room_bytes = room_bytes
        self._hosts = hosts
        self._in_force = in_force
        self._state_dir = state_dir
        self._events = events
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # ZeroMQ starts its threads with the first socket, and aborts the process if there is no
        # thread.
        self._context.socket(zmq.PAIR).close()
        self._incarnations = itertools.count(first_incarnation)
        self._records = records
        self._spare_log = WorkerLog(state_dir.spare_log_path)
        self.spares = Spares(
            in_force,
            lambda supervisor: self._new(
                None, self._spare_log, supervisor, name="spare", spare=True
            ),
            events,
        )

    def start(
        self, model: Model, log: WorkerLog, supervisor: Listener, estimated: Estimate | None
    ) -> Worker:
        """Start a worker for this model. From now on `supervisor` gets the worker's messages, its
        hello first. Other hosts keep the `estimated` memory for the model's ranks there.

        Raises:
            OSError: the interpreter can't be started, or a host isn't known.
        """
        # An unknown host must be an error before there is a process.
        there = {
            place.host: self._hosts.host(place.host)
            for place in model.settings.places
            if place.host != LOCAL
        }
        python = model.settings.interpreter
        adopted = self.spares.adopt() if python is None and not model.is_command else None
        if model.is_command:
            worker = self._new(
                None,
                log,
                supervisor,
                name=model.id,
                spare=False,
                mark=secrets.token_hex(8),
                files=tuple(str(expand_home(file)) for file in model.settings.files),
            )
            kind: Kind = "start"
        elif adopted is None:
            worker = self._new(python, log, supervisor, name=model.id, spare=False)
            kind = "start"
        else:
            worker, hello = adopted
            worker.adopt(supervisor, log)
            asyncio.get_running_loop().call_soon(supervisor.worker_sent, worker, hello)
            kind = "adopt"
        self._events.emit(kind, model.id, pid=worker.pid, incarnation=worker.incarnation)
        if len(model.settings.places) > 1:
            self._add_followers(worker, model, there, log, estimated)
        return worker

    def new_channel(self) -> Channel:
        """A new channel, at which the next gateway can listen for a worker of this gateway."""
        number = next(self._incarnations)
        return Channel(number, *new_keys())

    @property
    def next_incarnation(self) -> int:
        """The number from which the next gateway counts incarnations."""
        return next(self._incarnations)

    def adopt(
        self, state: WorkerState, channel: Channel, output: int, log: WorkerLog, listener: Listener
    ) -> Worker:
        """Take over a worker that an earlier gateway has started. `output` is the descriptor from
        which the worker's output is read.

        Raises:
            ProcessGoneError: the worker has ended.
            OSError: the system has no descriptor or no thread left.
        """
        worker = Worker(
            self._context,
            self._state_dir.socket_path(channel.number),
            listener,
            lambda _, on_exit: AdoptedProcess(state.process, output, log, self._records, on_exit),
            incarnation=state.incarnation,
            keys=Keys(channel.workers_key, channel.gateways_key),
            mark=state.mark,
            files=state.files,
        )
        worker.restore(state)
        return worker

    def _add_followers(
        self,
        worker: Worker,
        model: Model,
        there: Mapping[str, RankHost],
        log: WorkerLog,
        estimated: Estimate | None,
    ) -> None:
        settings = model.settings
        local_host: RankHost = LocalHost(self._records, self._room_bytes)
        floor_bytes, whole_bytes = (
            (0, 0) if estimated is None else (estimated.floor_bytes, estimated.whole_bytes)
        )
        plan = Plan(
            model_id=model.id,
            incarnation=worker.incarnation,
            backend=settings.backend or default_backend(),
            split=settings.split,
            hosts=[there.get(place.host, local_host) for place in settings.places],
            interfaces=[rank_place.interfaces for rank_place in settings.places],
            silence_s=max(self._in_force.settings.workers.heartbeat_timeout_s, _LEAST_SILENCE_S),
            log=log,
            cards=cards(settings.ranks_here),
            needed_bytes=floor_bytes // sharing(settings.ranks_here),
            wanted_bytes=whole_bytes // sharing(settings.ranks_here),
            python=settings.interpreter,
        )
        path = self._state_dir.rank_socket_path(worker.incarnation)
        worker.followers = Followers(plan, path, worker)

    def close(self) -> None:
        """Close the log of spares, and ZeroMQ. To be called when no worker is left."""
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
        mark: str | None = None,
        files: tuple[str, ...] = (),
    ) -> Worker:
        """With `mark` the worker guards the server of a command, which loads `files`."""
        _check_room()
        incarnation = next(self._incarnations)

        def start(link: Link, on_exit: Callable[[ExitStatus], None]) -> WorkerProcess:
            order = ProcessOrder(
                name=name,
                incarnation=incarnation,
                arguments=(
                    *("--endpoint", link.address),
                    *("--incarnation", str(incarnation)),
                    *(("--spare",) if spare else ()),
                    *(("--guard", mark) if mark else ()),
                ),
                secret=link.key,
                python=python,
                mark=mark,
            )
            return WorkerProcess(order, log, self._records, on_exit)

        path = self._state_dir.socket_path(incarnation)
        return Worker(
            self._context,
            path,
            supervisor,
            start,
            incarnation=incarnation,
            mark=mark,
            files=files,
        )


def _check_room() -> None:
    """Raises: OSError: fewer than `_ROOM` descriptors are left."""
    opened: list[int] = []
    try:
        opened.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_ROOM))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def default_backend() -> RankBackend:
    """The default backend of ranks on this machine."""
    return "nccl" if back_end() is BackEnd.CUDA else "ring"


def cards(ranks: int) -> list[str]:
    """The cards that this process may use, each as the CUDA_VISIBLE_DEVICES of one rank. Empty if
    MLX doesn't compute on cards.
    """
    if back_end() is not BackEnd.CUDA:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(index) for index in range(ranks)]
