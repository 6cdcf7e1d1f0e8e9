"""The successor's process, from the side of the gateway that starts it."""

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

from gateway.server.upgrade.messages import HANDOVER_VERSION, Failure, FromSuccessor, Introduction
from gateway.server.upgrade.wire import Frames, Passage
from gateway.system.lane import start_thread
from protocol.messages import PROTOCOL_VERSION

# Has the descriptor of its socket: only a gateway that is replaced sets it.
SUCCEEDS: Final = "BULKHEAD_SUCCEEDS"
_LAST_LINES: Final = 8
_EXIT_S: Final = 10.0
_LAST_WORDS_S: Final = 1.0


class UnfitError(Exception):
    """The successor can't take over; the text says why."""


class SuccessorProcess:
    """One thread keeps the last it prints until it serves; another waits for that, and reaps."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        frames: Frames[FromSuccessor],
        passage: Passage,
    ) -> None:
        self.frames = frames
        self.passage = passage
        self._process = process
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._reader = start_thread(self._read, "successor-output")
        start_thread(self._reap, "successor")

    @classmethod
    async def start(
        cls, python: str, environment: dict[str, str], descriptors: list[int]
    ) -> SuccessorProcess:
        """With the present process's own arguments. Raises: UnfitError."""
        control, its_control = socket.socketpair()
        passage, its_passage = socket.socketpair()
        try:
            try:
                process = _spawn(python, environment, its_control)
            except OSError as error:
                control.close()
                passage.close()
                raise UnfitError(
                    f"{python} can't be started ({error.strerror}): name the interpreter of the "
                    "new installation with --python"
                ) from error
            socket.send_fds(control, [b"\0"], [its_passage.fileno(), *descriptors])
        finally:
            its_control.close()
            its_passage.close()
        frames = await Frames.over(control, msgspec.msgpack.Decoder(FromSuccessor))
        return cls(process, frames, Passage(passage))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def prove(self, deadline_s: float) -> Introduction:
        """Wait until it could begin. Raises: UnfitError."""
        try:
            async with asyncio.timeout(deadline_s):
                said = await self.frames.receive()
        except TimeoutError:
            raise UnfitError(f"it was not ready within {deadline_s:g} s") from None
        match said:
            case Introduction() if said.protocol != PROTOCOL_VERSION:
                raise UnfitError(
                    f"version {said.version} speaks protocol {said.protocol} with its workers, "
                    f"and those that run speak {PROTOCOL_VERSION}: it takes a restart"
                )
            case Introduction() if said.handover != HANDOVER_VERSION:
                raise UnfitError(
                    f"version {said.version} takes over in another way ({said.handover}, here "
                    f"{HANDOVER_VERSION}): it takes a restart"
                )
            case Introduction():
                return said
            case Failure(reason=reason):
                raise UnfitError(reason)
            case _:
                raise UnfitError(await self.last_words())

    async def end(self) -> None:
        """At once: it has nothing yet, or workers that end with it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_S):
                await self._ended.wait()
        self.close()

    def close(self) -> None:
        self.frames.close()
        self.passage.close()

    async def last_words(self) -> str:
        """How it ended, and the last that it printed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
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
        # What it began may have its stderr, and hold that open.
        self._reader.join(_LAST_WORDS_S / 2)
        # The loop may be over.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set)


def _spawn(
    python: str, environment: dict[str, str], control: socket.socket
) -> subprocess.Popen[bytes]:
    """As workers are started: with `close_fds` off CPython needs no fork on macOS."""
    control.set_inheritable(True)
    return subprocess.Popen(
        [python, *_flags(), "-m", "gateway", *sys.argv[1:]],
        env=environment | {SUCCEEDS: str(control.fileno())},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        close_fds=False,
    )


def _flags() -> list[str]:
    """The current folder is looked for modules only if that is how this process was started."""
    return [] if "-m" in sys.orig_argv[1:3] and not sys.flags.safe_path else ["-P"]
