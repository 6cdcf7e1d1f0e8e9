"""The process of the gateway that is to replace this one."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections import deque
from typing import Final

import msgspec

from gateway.server.upgrade.channels import DescriptorChannel, MessageChannel
from gateway.server.upgrade.messages import HANDOVER_VERSION, Failure, FromSuccessor, Introduction
from gateway.system.lane import start_thread
from protocol.messages import PROTOCOL_VERSION

# The variable with the descriptor of the successor's socket. Only the gateway that starts the
# successor sets this variable.
SUCCEEDS: Final = "BULKHEAD_SUCCEEDS"
_LAST_LINES: Final = 8
_EXIT_S: Final = 10.0
_LAST_OUTPUT_S: Final = 1.0


class HandoverError(Exception):
    """The successor can't take over; the text says why."""


class SuccessorProcess:
    """The successor's process. One thread stores the last lines that the successor prints to stderr
    before it serves. Another thread reaps the process.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        messages: MessageChannel[FromSuccessor],
        descriptors: DescriptorChannel,
    ) -> None:
        self.messages = messages
        self.descriptors = descriptors
        self._process = process
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._reader = start_thread(self._read, "successor-output")
        start_thread(self._reap, "successor")

    @classmethod
    async def start(
        cls, python: str, environment: dict[str, str], inherited: list[int]
    ) -> SuccessorProcess:
        """Start the successor with the arguments of this process, and send it the `inherited`
        descriptors. Raises: HandoverError: the program can't be started.
        """
        control, successors_control = socket.socketpair()
        descriptors, successors_descriptors = socket.socketpair()
        try:
            try:
                process = _spawn(python, environment, successors_control)
            except OSError as error:
                control.close()
                descriptors.close()
                raise HandoverError(
                    f"{python} can't be started ({error.strerror}): name the interpreter of the "
                    "new installation with --python"
                ) from error
            socket.send_fds(control, [b"\0"], [successors_descriptors.fileno(), *inherited])
        finally:
            successors_control.close()
            successors_descriptors.close()
        messages = await MessageChannel.over(control, msgspec.msgpack.Decoder(FromSuccessor))
        return cls(process, messages, DescriptorChannel(descriptors))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def until_ready(self, deadline_s: float) -> Introduction:
        """Wait until the successor is ready. Raises: HandoverError."""
        try:
            async with asyncio.timeout(deadline_s):
                message = await self.messages.receive()
        except TimeoutError:
            raise HandoverError(f"it was not ready within {deadline_s:g} s") from None
        match message:
            case Introduction(version=version) if message.protocol != PROTOCOL_VERSION:
                raise HandoverError(
                    f"version {version} speaks protocol {message.protocol} with its workers, "
                    f"and those that run speak {PROTOCOL_VERSION}: it takes a restart"
                )
            case Introduction(version=version) if message.handover != HANDOVER_VERSION:
                raise HandoverError(
                    f"version {version} takes over in another way ({message.handover}, here "
                    f"{HANDOVER_VERSION}): it takes a restart"
                )
            case Introduction():
                return message
            case Failure(reason=reason):
                raise HandoverError(reason)
            case _:
                raise HandoverError(await self.describe_end())

    async def end(self) -> None:
        """Kill the successor. Workers that have connected to it already end with it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_S):
                await self._ended.wait()
        self.close()

    def close(self) -> None:
        self.messages.close()
        self.descriptors.close()

    async def describe_end(self) -> str:
        """How the successor ended, and its last lines."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_OUTPUT_S):
                await self._ended.wait()
        status = self._process.returncode
        how = "it went away" if status is None else f"it ended with status {status}"
        return f"{how}: {' | '.join(self._lines)}" if self._lines else how

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            for line in stderr:
                if text := line.decode("utf-8", "replace").strip():
                    self._lines.append(text[:500])

    def _reap(self) -> None:
        self._process.wait()
        # A process that the successor has started may still have the successor's stderr open.
        self._reader.join(_LAST_OUTPUT_S / 2)
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set)


def _spawn(
    python: str, environment: dict[str, str], control: socket.socket
) -> subprocess.Popen[bytes]:
    """Start the process without `close_fds`, as workers are started: so CPython needs no fork on
    macOS.
    """
    control.set_inheritable(True)
    return subprocess.Popen(
        [python, *_flags(), "-m", "gateway", *sys.argv[1:]],
        env=environment | {SUCCEEDS: str(control.fileno())},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        close_fds=False,
    )


def _flags() -> list[str]:
    """-P, which keeps modules of the current folder out. Empty if this process was itself started
    by `python -m` without -P.
    """
    return [] if "-m" in sys.orig_argv[1:3] and not sys.flags.safe_path else ["-P"]
