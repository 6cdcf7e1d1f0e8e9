"""A connection to another machine by ssh, at whose other end `bulkhead remote` runs.

The pipe is the lifeline of the rank at its other end: the remote program ends the rank when the
pipe ends, as after the death of this gateway, of ssh or of sshd, and when it hears no pong.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from gateway.config.model_settings import HostSettings
from gateway.system.clock import until_set
from gateway.system.tasks import Tasks
from gateway.workers.host import versions
from gateway.workers.lifeline import SILENCE_S
from gateway.workers.ssh_messages import (
    API,
    ForGateway,
    ForRemote,
    FrameError,
    FrameReader,
    NumberedForRemote,
    Ping,
    Pong,
    RemoteHello,
    StartRefused,
    decode_for_gateway,
    encode,
)

A = TypeVar("A", bound=ForGateway)

logger = logging.getLogger(__name__)

# ssh gives a connection up after this time, and then after three requests without an answer.
_CONNECT_S: Final = 5
_ALIVE_S: Final = 5
_HELLO_S: Final = 15.0
_CLOSE_S: Final = 2.0
_READ_BYTES: Final = 1 << 16
_MOST_ERROR_LINES: Final = 20

# Nobody could answer a question of ssh. A connection that was shared with other programs would
# live and die with them. Addresses of ranks are IPv4 (mlx.distributed).
_OPTIONS: Final = {
    "BatchMode": "yes",
    "ConnectTimeout": str(_CONNECT_S),
    "ServerAliveInterval": str(_ALIVE_S),
    "ServerAliveCountMax": "3",
    "AddressFamily": "inet",
    "ControlMaster": "no",
    "ControlPath": "none",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
}


class RefusedError(OSError):
    """The remote program has refused a request."""


def ssh_command(settings: HostSettings) -> tuple[str, ...]:
    """The command that starts the remote program of a host."""
    options = (word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}"))
    return ("ssh", "-T", *options, "--", settings.ssh, f"{settings.command} remote")


class SshSession:
    """A connection that is open. Everything runs on the event loop."""

    # Set once the connection is open.
    hello: RemoteHello

    def __init__(
        self, host: str, process: asyncio.subprocess.Process, receive: Callable[[ForGateway], None]
    ) -> None:
        self.host = host
        self.pid = process.pid
        self.ended = asyncio.Event()
        # Why the session has ended, as a part of a sentence.
        self.reason = ""
        # The time of the last pong, on the loop's clock. The remote program hears none after it.
        self.last_pong_at = asyncio.get_running_loop().time()
        self._process = process
        self._receive = receive
        self._waiters: dict[int, asyncio.Future[ForGateway]] = {}
        self._numbers = itertools.count(1)
        self._greeted = asyncio.Event()
        self._heard = asyncio.Event()
        self._errors: deque[str] = deque(maxlen=_MOST_ERROR_LINES)
        self._tasks = Tasks(f"ssh to {host}")
        self._tasks.start(self._read(), "read")

    @classmethod
    async def open(
        cls, host: str, settings: HostSettings, receive: Callable[[ForGateway], None]
    ) -> SshSession:
        """Start ssh, and wait until the remote program answers. `receive` gets the messages that
        answer no request.

        Raises: OSError: the host can't be reached, or has another version.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *ssh_command(settings),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                # Without a terminal ssh asks nobody, and Ctrl-C ends the gateway's ranks in order.
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise OSError("there is no program ssh on this machine") from error
        session = cls(host, process, receive)
        try:
            await session._until_greeted()
            if (reason := disagreement(host, session.hello)) is not None:
                raise OSError(reason)
        except BaseException as error:
            session.end("it was not used")
            if isinstance(error, OSError):
                await session.close()
            raise
        return session

    async def ask(self, request: ForRemote, kind: type[A], deadline_s: float) -> A:
        """Send a request, and return its answer, which is of this `kind`.

        Raises:
            RefusedError: the remote program refuses the request.
            OSError: the session has ended, or no answer comes in time.
        """
        if self.ended.is_set():
            raise ConnectionError(self.reason)
        number = next(self._numbers)
        # The answer may come before `write` returns.
        waiter: asyncio.Future[ForGateway] = asyncio.get_running_loop().create_future()
        self._waiters[number] = waiter
        try:
            self._send(number, request)
            async with asyncio.timeout(deadline_s):
                answer = await waiter
        except TimeoutError as error:
            raise TimeoutError(f"{self.host} did not answer within {deadline_s:g} s") from error
        finally:
            self._waiters.pop(number, None)
        if isinstance(answer, StartRefused):
            raise RefusedError(f"{self.host}: {answer.reason}")
        if not isinstance(answer, kind):
            raise OSError(f"{self.host} gave another answer than {kind.__name__}")
        return answer

    def end(self, reason: str) -> None:
        """Kill ssh: the remote program finds the end of its pipe, and ends its rank."""
        if not self.ended.is_set():
            self.reason = reason
            self.ended.set()
            for waiter in self._waiters.values():
                if not waiter.done():
                    waiter.set_exception(ConnectionError(reason))
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """Close the pipe, so that the remote program and ssh end. Kill ssh if that takes long."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await until_set(self.ended, _CLOSE_S)
        self.end("this gateway has closed it")
        await self._process.wait()
        await self._tasks.cancel_all()

    async def _until_greeted(self) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._greeted, self.ended)]
        try:
            await asyncio.wait(waits, timeout=_HELLO_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.ended.is_set():
            raise ConnectionError(self.reason)
        if not self._greeted.is_set():
            raise TimeoutError(
                f"`bulkhead remote` on {self.host} did not answer within {_HELLO_S:g} s"
            )

    def _send(self, number: int, message: ForRemote) -> None:
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(encode(NumberedForRemote(number, message)))

    async def _read(self) -> None:
        assert self._process.stdout is not None
        frames = FrameReader(after_preamble=True)
        errors = asyncio.ensure_future(self._read_errors())
        try:
            while data := await self._process.stdout.read(_READ_BYTES):
                for content in frames.feed(data):
                    self._dispatch(content)
                self._heard.set()
        except (FrameError, msgspec.MsgspecError) as error:
            self.end(f"{self.host} has another version of Bulkhead, or none: {error}")
            return
        finally:
            # The last lines say why ssh ended. A shared pipe may stay open after that.
            await asyncio.wait({errors}, timeout=_CLOSE_S)
            errors.cancel()
        if not self.ended.is_set():
            self.end(await self._end_of_ssh())

    async def _end_of_ssh(self) -> str:
        try:
            code = await asyncio.wait_for(self._process.wait(), _CLOSE_S)
            status = f"exit code {code}" if code >= 0 else f"signal {-code}"
        except TimeoutError:
            status = "the end of its output"
        last = next((line.rstrip(".") for line in reversed(self._errors) if line), None)
        return f"ssh to {self.host} ended with {status}" + (f": {last}" if last else "")

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(ValueError):  # A line without end.
            async for line in self._process.stderr:
                self._errors.append(line.decode("utf-8", "replace").strip())

    async def _watch(self) -> None:
        """End the session if the remote program falls silent."""
        while await until_set(self._heard, SILENCE_S):
            self._heard.clear()
            await asyncio.sleep(0)
        self.end(f"{self.host} has been silent for {SILENCE_S:g} s")

    def _dispatch(self, content: bytes) -> None:
        numbered = decode_for_gateway(content)
        match numbered.message:
            case Ping(number):
                self.last_pong_at = asyncio.get_running_loop().time()
                self._send(0, Pong(number))
            case RemoteHello() as hello:
                self.hello = hello
                self._greeted.set()
                self._tasks.start(self._watch(), "watch")
            case message if numbered.number:
                waiter = self._waiters.get(numbered.number)
                if waiter is not None and not waiter.done():
                    waiter.set_result(message)
            case message:
                self._receive(message)


def disagreement(host: str, hello: RemoteHello) -> str | None:
    """A sentence that says why ranks on that host can't work with ranks here; None: they can."""
    if hello.api != API:
        return (
            f"{host} has Bulkhead {hello.version}, whose messages have version {hello.api}, and "
            f"this one {API}: install the same on both hosts."
        )
    differing = [
        f"{name} {hello.versions.get(name, 'nowhere')} there and {version} here"
        for name, version in versions().items()
        if hello.versions.get(name) != version
    ]
    if not differing:
        return None
    return f"{host} has other versions ({'; '.join(differing)}): install the same on both."
