"""The present gateway's side of an upgrade: it starts its successor and hands its state over.

Until the successor says that it serves, the hand-over can be undone. Workers hold their messages
back meanwhile. If the successor doesn't come up, the workers stay with this gateway, but for those
that have connected to the successor already.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import Final

import msgspec

from gateway.http.app import Parts
from gateway.requests.request import Request
from gateway.server.gateway_channel import (
    HANDOVER_VERSION,
    Cancelled,
    DescriptorChannel,
    Failure,
    FromSuccessor,
    HandoverState,
    Introduction,
    MessageChannel,
    Serving,
    Spent,
    Submitted,
)
from gateway.server.relay import Relay
from gateway.system.child import Child, ExitStatus
from gateway.system.clock import present_clock
from gateway.system.refusal import Refusal
from protocol.life import Move
from protocol.messages import PROTOCOL_VERSION

# The variable with the descriptor of the successor's socket. Only the gateway that starts the
# successor sets this variable.
SUCCEEDS: Final = "BULKHEAD_SUCCEEDS"
_LAST_LINES: Final = 8
_EXIT_S: Final = 10.0
_FINAL_LINES_S: Final = 1.0


class HandoverError(Exception):
    """The successor can't take over; the text says why."""


class SuccessorProcess:
    """The successor's process, and its two channels."""

    def __init__(
        self,
        child: Child,
        messages: MessageChannel[FromSuccessor],
        descriptors: DescriptorChannel,
        ended: asyncio.Event,
    ) -> None:
        self.messages = messages
        self.descriptors = descriptors
        self._child = child
        self._ended = ended

    @classmethod
    async def start(
        cls, python: str, environment: dict[str, str], inherited: list[int]
    ) -> SuccessorProcess:
        """Start the successor with the arguments of this process, and send it the `inherited`
        descriptors. Raises: HandoverError: the program can't be started.
        """
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def report_end(_: ExitStatus) -> None:
            # The loop may be closed by now.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        control, its_control = socket.socketpair()
        descriptors, its_descriptors = socket.socketpair()
        try:
            try:
                its_control.set_inheritable(True)
                child = Child(
                    [python, *_flags(), "-m", "gateway", *sys.argv[1:]],
                    "successor",
                    environment=environment | {SUCCEEDS: str(its_control.fileno())},
                    stdin=subprocess.DEVNULL,
                    stdout=None,
                    stderr=subprocess.PIPE,
                    on_exit=report_end,
                    # A process of the successor may have its stderr, and hold that open.
                    drain_s=_FINAL_LINES_S / 2,
                )
            except OSError as error:
                control.close()
                descriptors.close()
                raise HandoverError(
                    f"{python} can't be started ({error.strerror}): name the interpreter of the "
                    "new installation with --python"
                ) from error
            socket.send_fds(control, [b"\0"], [its_descriptors.fileno(), *inherited])
        finally:
            its_control.close()
            its_descriptors.close()
        messages = await MessageChannel.over(control, msgspec.msgpack.Decoder(FromSuccessor))
        return cls(child, messages, DescriptorChannel(descriptors), ended)

    @property
    def pid(self) -> int:
        return self._child.pid

    async def prove(self, deadline_s: float) -> Introduction:
        """Wait until the successor is ready. Raises: HandoverError."""
        try:
            async with asyncio.timeout(deadline_s):
                said = await self.messages.receive()
        except TimeoutError:
            raise HandoverError(f"it was not ready within {deadline_s:g} s") from None
        match said:
            case Introduction() if said.protocol != PROTOCOL_VERSION:
                raise HandoverError(
                    f"version {said.version} speaks protocol {said.protocol} with its workers, "
                    f"and those that run speak {PROTOCOL_VERSION}: it takes a restart"
                )
            case Introduction() if said.handover != HANDOVER_VERSION:
                raise HandoverError(
                    f"version {said.version} takes over in another way ({said.handover}, here "
                    f"{HANDOVER_VERSION}): it takes a restart"
                )
            case Introduction():
                return said
            case Failure(reason=reason):
                raise HandoverError(reason)
            case _:
                raise HandoverError(await self.final_message())

    async def end(self) -> None:
        """Kill the successor. Workers that have connected to it already end with it."""
        self._child.signal(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_S):
                await self._ended.wait()
        self.close()

    def close(self) -> None:
        self.messages.close()
        self.descriptors.close()

    async def final_message(self) -> str:
        """How the successor ended, and its last lines."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FINAL_LINES_S):
                await self._ended.wait()
        status = self._child.status
        how = "it went away" if status is None else f"it ended with status {status}"
        lines = list(self._child.last_errors)[-_LAST_LINES:]
        return f"{how}: {' | '.join(lines)}" if lines else how


def _flags() -> list[str]:
    """-P, which keeps modules of the current folder out. Empty if this process was itself started
    by `python -m` without -P.
    """
    return [] if "-m" in sys.orig_argv[1:3] and not sys.flags.safe_path else ["-P"]


_MOVE_S: Final = 15.0
_SERVE_S: Final = 60.0


class Handover:
    """One attempt at an upgrade. After `carry_out` the `relay` has the requests."""

    def __init__(self, parts: Parts, earlier: int) -> None:
        """`earlier` is the number of gateways before this one that still serve clients."""
        self.relay = Relay()
        self._parts = parts
        self._earlier = earlier

    async def until_settled(self) -> None:
        """Let no worker begin to start or to end, and wait until no worker is starting or ending.
        Raises: HandoverError: the wait takes longer than a load may take.
        """
        seconds = self._parts.fleet.settings.workers.load_timeout_s
        try:
            await self._parts.fleet.until_settled(seconds)
        except TimeoutError:
            every = self._parts.fleet.roster.everyone
            named = (
                f"{compartment.model.id} is {compartment.state}"
                for compartment in every
                if compartment.unsettled
            )
            raise HandoverError(
                f"models were still being loaded or unloaded after {seconds:g} s: "
                f"{', '.join(named)}"
            ) from None

    async def carry_out(self, successor: SuccessorProcess) -> None:
        """Hand the state over to the successor. Returns once the successor serves.

        Raises:
            HandoverError, OSError, ProcessGoneError: the hand-over has failed and must be undone.
        """
        check_ranks(self._parts)
        fleet, parts = self._parts.fleet, self._parts
        channels = fleet.hand_over(self.relay)
        workers = {
            each.model.id: each.worker for each in fleet.roster.everyone if each.worker is not None
        }
        orders = {
            model_id: Move(
                address=fleet.channel_address(channels[model_id]),
                key=channels[model_id].workers_key,
                parent=successor.pid,
            )
            for model_id in workers
        }
        moved = await asyncio.gather(
            *(each.move(orders[model_id], _MOVE_S) for model_id, each in workers.items())
        )
        if not all(moved):
            raise HandoverError("a worker didn't let itself be handed over: see its log")
        making = parts.mailbox.hand_over()
        parts.keys.forward(self.relay.spend)
        state = HandoverState(
            models=tuple(
                each.state_for(self.relay.number, channels.get(each.model.id))
                for each in fleet.roster.everyone
            ),
            incarnation=fleet.next_incarnation,
            events=fleet.events.stored,
            book=parts.keys.book,
            making=tuple(making),
            earlier=self._earlier,
            away_s=present_clock().away_s,
        )
        for each in workers.values():
            successor.descriptors.send(b"prnt", each.incarnation, os.dup(each.output))
        try:
            async with asyncio.timeout(_SERVE_S):
                await successor.descriptors.sent()
                successor.messages.send(state)
                await self._until_it_serves(successor)
        except TimeoutError:
            raise HandoverError(f"it did not serve within {_SERVE_S:g} s") from None

    def undo(self) -> None:
        """Let this gateway go on, also with the requests that came in meanwhile."""
        parts = self._parts
        parts.mailbox.take_back()
        parts.keys.forward(None)
        parts.fleet.take_back()
        for order in self.relay.undo():
            match order:
                case Submitted(number=number, model=model_id):
                    self._submit(model_id, self.relay.request(number))
                case Cancelled(number=number):
                    request = self.relay.request(number)
                    for each in parts.fleet.roster.everyone:
                        each.traffic.cancel(request)
                case Spent(name=name, usage=usage):
                    parts.keys.account(name, usage)

    async def _until_it_serves(self, successor: SuccessorProcess) -> None:
        """Wait until the successor sends `Serving`. Before that it may already send parts of
        answers. Raises: HandoverError: the successor has failed or ended.
        """
        while True:
            match await successor.messages.receive():
                case Serving():
                    return
                case Failure(reason=reason):
                    raise HandoverError(reason)
                case None:
                    raise HandoverError(f"while it took over {await successor.final_message()}")
                case message:
                    self.relay.receive(message)

    def _submit(self, model_id: str, request: Request) -> None:
        for each in self._parts.fleet.roster.everyone:
            if each.model.id == model_id:
                try:
                    each.submit(request)
                except Refusal as refusal:
                    request.refuse(refusal)


def check_ranks(parts: Parts) -> None:
    """Raises: HandoverError: a loaded model has several ranks. Its followers watch this gateway, or
    an agent that watches this gateway, and can't change to another gateway.
    """
    for each in parts.fleet.roster.everyone:
        if each.worker is not None and each.worker.followers is not None:
            name = each.model.id
            raise HandoverError(
                f"{name!r} is loaded with several ranks, which can't be handed over: "
                f"`bulkhead unload {name} --hold` first and `bulkhead load {name}` afterwards, "
                "or restart the gateway"
            )
