"""The successor's side of an upgrade: it says that it is ready, takes over, and serves.

It gets the listener at its start, and the idle connections once it serves.
"""

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
from gateway.server.upgrade.channels import DescriptorChannel, MessageChannel
from gateway.server.upgrade.messages import (
    HANDOVER_VERSION,
    Cancelled,
    Failure,
    Finished,
    FromPredecessor,
    Handover,
    Introduction,
    Released,
    Serving,
    Spent,
    Submitted,
)
from gateway.server.upgrade.state import CannotTakeOverError, restore, restore_clock
from gateway.server.upgrade.successor import SUCCEEDS
from gateway.server.upgrade.successor_relay import RelayedRequests
from gateway.server.uvicorn_server import UvicornServer
from gateway.system.clock import until_set
from gateway.system.tasks import Tasks
from protocol.messages import PROTOCOL_VERSION

_DESCRIPTORS: Final = 5


class Inheritance:
    """The descriptors that the gateway before this one has sent: the listener, the lock, the
    channels between the two gateways, that gateway's stderr, and the socket to the process that
    stands in for this gateway.
    """

    def __init__(self, control: socket.socket) -> None:
        """Raises: OSError: the gateway at the other end has ended."""
        _, received, _, _ = socket.recv_fds(control, 1, _DESCRIPTORS)
        if len(received) != _DESCRIPTORS:
            raise OSError("the gateway that is to be replaced has gone")
        for descriptor in received:
            os.set_inheritable(descriptor, False)
        descriptors, listener, lock, stderr, stand_in = received
        self.control = control
        self.descriptors = socket.socket(fileno=descriptors)
        self.listener = socket.socket(fileno=listener)
        self.lock = lock
        self.stand_in = socket.socket(fileno=stand_in)
        self._stderr = stderr

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> Inheritance | None:
        """The inheritance that a variable of `environment` leads to. None: this gateway replaces no
        other.

        Raises:
            OSError: the gateway at the other end has ended.
        """
        descriptor = environment.pop(SUCCEEDS, None)
        if descriptor is None:
            return None
        control = socket.socket(fileno=int(descriptor))
        control.set_inheritable(False)
        return cls(control)

    def fail(self, reason: str) -> None:
        """Tell the other gateway why this one can't take over."""
        frame = msgspec.msgpack.encode(Failure(reason))
        self.control.setblocking(True)
        self.control.sendall(struct.pack(">I", len(frame)) + frame)

    def adopt_stderr(self) -> None:
        """Print to the earlier gateway's stderr from now on. Until now the earlier gateway stored
        the lines of this gateway, to show them after a failure.
        """
        sys.stderr.flush()
        os.dup2(self._stderr, 2)
        os.close(self._stderr)


_TIDY_S: Final = 1.0
_CONNECT_S: Final = 10.0


class Takeover:
    """The connection to the gateway before this one, until that gateway has ended."""

    def __init__(
        self,
        messages: MessageChannel[FromPredecessor],
        handover: Handover,
        inheritance: Inheritance,
    ) -> None:
        self.state, self.earlier = handover.state, handover.earlier
        # Set once the earlier gateway has only clients left.
        self.released = asyncio.Event()
        self.gone = asyncio.Event()
        self._messages = messages
        self._descriptors = DescriptorChannel(inheritance.descriptors)
        self._inheritance = inheritance
        self._outputs: dict[int, int] = {}
        self._relayed = RelayedRequests(messages.send)
        self._tasks = Tasks("takeover")

    @classmethod
    async def receive(cls, inheritance: Inheritance) -> Takeover | None:
        """Say that this gateway is ready, and wait for the state. None: the earlier gateway goes on
        instead.
        """
        messages = await MessageChannel.over(
            inheritance.control, msgspec.msgpack.Decoder(FromPredecessor)
        )
        messages.send(
            Introduction(
                version=VERSION,
                protocol=PROTOCOL_VERSION,
                handover=HANDOVER_VERSION,
                pid=os.getpid(),
            )
        )
        handover = await messages.receive()
        if not isinstance(handover, Handover):
            return None
        restore_clock(handover.state)
        return cls(messages, handover, inheritance)

    async def fail(self, reason: str) -> None:
        """Tell the other gateway why this one can't take over."""
        self._messages.send(Failure(reason))
        await self._messages.sent()

    async def continue_state(self, fleet: Fleet, keys: ApiKeys, mailbox: Mailbox) -> None:
        """Go on from the state. Returns once the workers have connected to this gateway.

        Raises:
            CannotTakeOverError, ProcessGoneError, OSError: the earlier gateway must go on.
        """
        self._outputs = {
            incarnation: output for _, incarnation, output in self._descriptors.receive()
        }
        restore(self.state, fleet, keys, mailbox, self._outputs, self._relayed.restore)
        adopted = fleet.workers
        wanted = {model.id: model.wanted for model in self.state.models}
        for model_id, supervisor in fleet.roster.configured.items():
            if model_id in wanted:
                supervisor.resume(wanted=wanted[model_id])
        for worker in adopted:
            if not await until_set(worker.settled, _CONNECT_S):
                raise CannotTakeOverError(
                    f"worker {worker.pid} didn't connect within {_CONNECT_S:g} s"
                )

    def serve(self, fleet: Fleet, server: UvicornServer, keys: ApiKeys, mailbox: Mailbox) -> None:
        """Say that this gateway serves. From then on receive connections and messages of the
        earlier gateway.
        """
        self._descriptors.watch(
            lambda _kind, _number, descriptor: self._serve_connection(server, descriptor)
        )
        self._tasks.start(self._listen(fleet, keys, mailbox), "predecessor")
        self._tasks.repeat(self._tidy, "relayed requests", _TIDY_S)
        self._inheritance.adopt_stderr()
        self._messages.send(Serving())

    async def close(self) -> None:
        await self._tasks.cancel_all()
        self._messages.close()
        self._descriptors.close()

    async def _listen(self, fleet: Fleet, keys: ApiKeys, mailbox: Mailbox) -> None:
        while (message := await self._messages.receive()) is not None:
            match message:
                case Submitted():
                    self._relayed.submit(fleet, message)
                case Cancelled(number=number):
                    self._relayed.cancel(fleet, number)
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
        self._relayed.cancel_all(fleet)
        self.released.set()
        self.gone.set()
        await mailbox.queue_left_out()
        self._messages.close()

    def _read_output(self, fleet: Fleet, incarnation: int, begun: bytes) -> None:
        if self._outputs.pop(incarnation, None) is None:
            return
        for worker in fleet.workers:
            if worker.incarnation == incarnation:
                worker.read_output(begun)

    def _serve_connection(self, server: UvicornServer, descriptor: int) -> None:
        connected = socket.socket(fileno=descriptor)
        self._tasks.start(server.serve_connection(connected), "connection")

    async def _tidy(self) -> None:
        self._relayed.forget_ended()
