"""The successor's side of an upgrade: it proves itself, takes over what it is told, and serves."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import MutableMapping
from typing import Final

import msgspec

from gateway import VERSION
from gateway.access.keys import ApiKeys
from gateway.mailbox.mailbox import Mailbox
from gateway.models.fleet import Fleet
from gateway.server.gateway_channel import (
    HANDOVER_VERSION,
    Cancelled,
    DescriptorChannel,
    Failure,
    Finished,
    FromPredecessor,
    HandoverState,
    Introduction,
    MessageChannel,
    Released,
    Serving,
    Spent,
    Submitted,
)
from gateway.server.handover import SUCCEEDS
from gateway.server.relay import RelayedRequests
from gateway.server.uvicorn_server import UvicornServer
from gateway.system.clock import present_clock, until_set
from gateway.system.tasks import Tasks
from protocol.messages import PROTOCOL_VERSION

_DESCRIPTORS = 5


class Inheritance:
    """The listener, the lock's descriptor, and the channels to the gateway before this one and to
    who stands in for it.
    """

    def __init__(self, control: socket.socket) -> None:
        """Raises: OSError: there is no gateway at the other end."""
        _, descriptors, _, _ = socket.recv_fds(control, 1, _DESCRIPTORS)
        if len(descriptors) != _DESCRIPTORS:
            raise OSError("the gateway that is to be replaced has gone")
        for each in descriptors:
            os.set_inheritable(each, False)
        passage, listener, lock, stderr, keeper = descriptors
        self.control = control
        self.passage = socket.socket(fileno=passage)
        self.listener = socket.socket(fileno=listener)
        self.lock = lock
        self.keeper = socket.socket(fileno=keeper)
        self._stderr = stderr

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> Inheritance | None:
        """None: there is no gateway to be replaced. Raises: OSError, as above."""
        descriptor = environment.pop(SUCCEEDS, None)
        if descriptor is None:
            return None
        control = socket.socket(fileno=int(descriptor))
        control.set_inheritable(False)
        return cls(control)

    def fail(self, reason: str) -> None:
        """Say why nothing comes of it."""
        frame = msgspec.msgpack.encode(Failure(reason))
        self.control.setblocking(True)
        self.control.sendall(struct.pack(">I", len(frame)) + frame)

    def take_stderr(self) -> None:
        """What is printed from now on goes where it went before: until then it was read as reasons
        for a failure.
        """
        sys.stderr.flush()
        os.dup2(self._stderr, 2)
        os.close(self._stderr)


_TIDY_S: Final = 1.0
_SETTLE_S: Final = 10.0


class CannotTakeOverError(Exception):
    """What the gateway before this one has can't be gone on with; the text says why."""


class Takeover:
    """The gateway before this one, as long as it is there."""

    def __init__(
        self,
        frames: MessageChannel[FromPredecessor],
        passage: DescriptorChannel,
        estate: HandoverState,
        inheritance: Inheritance,
    ) -> None:
        self.estate = estate
        # Set once nothing but clients is left there.
        self.released = asyncio.Event()
        self.gone = asyncio.Event()
        self._frames = frames
        self._passage = passage
        self._inheritance = inheritance
        self._outputs: dict[int, int] = {}
        self._guests = RelayedRequests(frames.send)
        self._tasks = Tasks("takeover")

    @classmethod
    async def begin(cls, inheritance: Inheritance) -> Takeover | None:
        """Say that this gateway could begin, and wait for what there is; None: it isn't wanted."""
        frames = await MessageChannel.over(
            inheritance.control, msgspec.msgpack.Decoder(FromPredecessor)
        )
        frames.send(
            Introduction(
                version=VERSION,
                protocol=PROTOCOL_VERSION,
                handover=HANDOVER_VERSION,
                pid=os.getpid(),
            )
        )
        estate = await frames.receive()
        if not isinstance(estate, HandoverState):
            return None
        # Before anybody reads it.
        present_clock().restore(estate.away_s)
        return cls(frames, DescriptorChannel(inheritance.passage), estate, inheritance)

    async def fail(self, reason: str) -> None:
        """Say why this gateway doesn't go on."""
        self._frames.send(Failure(reason))
        await self._frames.sent()

    def restore(self, fleet: Fleet, keys: ApiKeys, mailbox: Mailbox) -> None:
        """Raises: CannotTakeOverError; ProcessGoneError, OSError: a worker has ended."""
        self._outputs = {number: each for _, number, each in self._passage.take()}
        fleet.events.restore(self.estate.events)
        keys.restore(self.estate.book)
        mailbox.leave_out(self.estate.making)
        missing = [each for each in self.estate.models if not self._fits(fleet, each.id)]
        for state in missing:
            if state.worker is not None or state.running or state.waiting:
                raise CannotTakeOverError(
                    f"{state.id!r} is configured in another way than it was loaded: apply that "
                    "first, with `bulkhead config reload`"
                )
        for state in self.estate.models:
            if state in missing:
                continue
            worker = state.worker
            fleet.roster.configured[state.id].restore(
                state,
                None if worker is None else self._outputs.get(worker.incarnation),
                self._guests.restore(state.id, state.running),
                self._guests.restore(state.id, state.waiting),
            )

    async def settle(self, fleet: Fleet) -> None:
        """The workers are this gateway's from now on. Raises: CannotTakeOverError: one doesn't
        come.
        """
        adopted = fleet.workers
        wanted = {each.id: each.wanted for each in self.estate.models}
        for model_id, compartment in fleet.roster.configured.items():
            if model_id in wanted:
                compartment.settle(wanted=wanted[model_id])
        for worker in adopted:
            if not await until_set(worker.settled, _SETTLE_S):
                raise CannotTakeOverError(f"worker {worker.pid} didn't come within {_SETTLE_S:g} s")

    def serve(self, fleet: Fleet, server: UvicornServer, keys: ApiKeys, mailbox: Mailbox) -> None:
        """Say that this gateway serves: the one before it sends no clients away from now on."""
        self._passage.watch(
            lambda _what, _number, descriptor: self._take_connection(server, descriptor)
        )
        self._tasks.start(self._listen(fleet, keys, mailbox), "predecessor")
        self._tasks.keep(self._tidy, "guests", _TIDY_S)
        self._inheritance.take_stderr()
        self._frames.send(Serving())

    async def close(self) -> None:
        await self._tasks.cancel_all()
        self._frames.close()
        self._passage.close()

    def _fits(self, fleet: Fleet, model_id: str) -> bool:
        state = next(each for each in self.estate.models if each.id == model_id)
        compartment = fleet.roster.configured.get(model_id)
        if compartment is None:
            return False
        return state.worker is None or compartment.model.told == state.told

    async def _listen(self, fleet: Fleet, keys: ApiKeys, mailbox: Mailbox) -> None:
        while (message := await self._frames.receive()) is not None:
            match message:
                case Submitted():
                    self._guests.submit(fleet, message)
                case Cancelled():
                    self._guests.cancel(fleet, message)
                case Spent(name=name, usage=usage):
                    keys.account(name, usage)
                case Released(incarnation=0):
                    self.released.set()
                case Released(incarnation=incarnation, begun=begun):
                    self._read_output(fleet, incarnation, begun)
                case Finished():
                    break
        for incarnation in list(self._outputs):
            self._read_output(fleet, incarnation, b"")
        self._guests.leave(fleet)
        self.released.set()
        self.gone.set()
        await mailbox.restore()
        self._frames.close()

    def _read_output(self, fleet: Fleet, incarnation: int, begun: bytes) -> None:
        if self._outputs.pop(incarnation, None) is None:
            return
        for worker in fleet.workers:
            if worker.incarnation == incarnation:
                worker.read_output(begun)

    def _take_connection(self, server: UvicornServer, descriptor: int) -> None:
        connected = socket.socket(fileno=descriptor)
        self._tasks.start(server.take_connection(connected), "connection")

    async def _tidy(self) -> None:
        self._guests.forget_ended()
