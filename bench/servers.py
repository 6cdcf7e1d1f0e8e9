"""Servers that are measured over HTTP, with their default settings: Bulkhead and its peers."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import uvloop

from bench.load import Address, RunningStreams, completion_request
from bench.prompts import Prompt, settings_of
from bench.results import BULKHEAD, GATEWAY, SERVER, WORKER, FailedError, Generation

_HOST: Final = "127.0.0.1"
_START_S: Final = 120.0
_STOP_S: Final = 40.0
_LOG_TAIL_CHARACTERS: Final = 2000
# vllm-mlx and Rapid-MLX otherwise turn results of tools into messages of the user.
_NATIVE_RESULTS: Final = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
_PROBE_INTERVAL_S: Final = 0.02
_PROBE: Final = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)

T = TypeVar("T")


class MeasuredServer:
    """A server process and its address. What it logs goes to a file."""

    name: str
    address: Address

    def __init__(
        self, arguments: list[str], log: Path, model: str, program: str = sys.executable
    ) -> None:
        """`model` is the name that requests ask for."""
        self._log = log
        self.model = model
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [program, *arguments], stdout=subprocess.PIPE, stderr=stderr, text=True
            )

    def processes(self) -> dict[str, int]:
        """Process ids by what each process is, once the model is loaded."""
        return {self.name: self._process.pid}

    def generate(self, prompts: Sequence[Prompt], tokens: int) -> Generation:
        """Stream the answers to all prompts at once.

        Raises:
            FailedError: a stream broke off, or didn't make `tokens` tokens.
        """
        return self._run(self._generate(prompts, tokens))

    def probe_health(
        self, next_prompts: Callable[[], list[str]], tokens: int, at_least_s: float
    ) -> list[float]:
        """Latencies in seconds, in loads that together last at least so long.

        Raises:
            FailedError: a stream failed, or a probe.
        """
        return self._run(self._probe_under_load(next_prompts, tokens, at_least_s))

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return uvloop.run(coroutine)
        except (FailedError, OSError, EOFError) as error:
            raise self._failed(str(error)) from error

    async def _probe_under_load(
        self, next_prompts: Callable[[], list[str]], tokens: int, at_least_s: float
    ) -> list[float]:
        probe = HealthProbe(self.address)
        loaded_s = 0.0
        while loaded_s < at_least_s:
            load = await self._open(next_prompts(), tokens)
            over = asyncio.Event()
            probing = asyncio.create_task(probe.run(over))
            loaded_s += (await load.generate(tokens)).wall_s
            over.set()
            await probing
        probe.close()
        return probe.latencies_s

    async def _generate(self, prompts: Sequence[Prompt], tokens: int) -> Generation:
        load = await self._open(prompts, tokens)
        return await load.generate(tokens)

    async def _open(self, prompts: Sequence[Prompt], tokens: int) -> RunningStreams:
        requests = [
            completion_request(self.model, prompt, tokens, msgspec.structs.asdict(settings))
            for prompt, settings in zip(prompts, settings_of(prompts), strict=True)
        ]
        return await RunningStreams.open(self.address, requests)

    def _failed(self, why: str) -> FailedError:
        tail = self._log.read_text("utf-8", "replace")[-_LOG_TAIL_CHARACTERS:]
        return FailedError(f"{self.name}: {why}\nThe end of its log:\n{tail}")


class BulkheadServer(MeasuredServer):
    """`bulkhead serve`: the gateway and, after the first request, its worker."""

    name = BULKHEAD

    def __init__(self, model: Path, state_dir: Path, log: Path, *options: str) -> None:
        arguments = ["-m", "gateway", "serve", "--model", f"{model}=bench", "--port", "0"]
        super().__init__([*arguments, "--state-dir", str(state_dir), *options], log, "bench")
        assert self._process.stdout is not None
        found = re.search(r"http://[\w.]+:(\d+)", self._process.stdout.readline())
        if found is None:
            self._process.wait()
            raise self._failed("It printed no address.")
        self.address = (_HOST, int(found[1]))

    def processes(self) -> dict[str, int]:
        url = f"http://{_HOST}:{self.address[1]}/admin/v1/status"
        with urllib.request.urlopen(url) as answer:
            (model,) = json.load(answer)["models"]
        return {GATEWAY: self._process.pid, WORKER: model["worker"]["pid"]}


class OtherServer(MeasuredServer):
    """Another project's server, a single process that listens at `--port`."""

    def __init__(
        self, arguments: list[str], log: Path, model: str, program: str = sys.executable
    ) -> None:
        with socket.create_server((_HOST, 0)) as listener:
            port = listener.getsockname()[1]
        super().__init__([*arguments, "--port", str(port)], log, model, program)
        self.address = (_HOST, port)
        deadline = time.monotonic() + _START_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise self._failed("It doesn't listen.")
            time.sleep(0.1)

    def _listens(self) -> bool:
        try:
            socket.create_connection(self.address, timeout=1.0).close()
        except OSError:
            return False
        return True


class MlxLmServer(OtherServer):
    """`mlx_lm.server`. By default it decodes 32 requests at once too."""

    name = SERVER

    def __init__(self, model: Path, log: Path) -> None:
        super().__init__(["-m", "mlx_lm", "server", "--model", str(model)], log, "default_model")


class VllmMlx(OtherServer):
    """`vllm-mlx serve`, whose program lies in an environment of its own. Its other engine computes
    every prompt anew.
    """

    name = "vllm-mlx"

    def __init__(self, program: str, model: Path, log: Path) -> None:
        arguments = ["serve", str(model), "--host", _HOST, "--continuous-batching"]
        arguments += _NATIVE_RESULTS
        super().__init__(arguments, log, str(model), program)


class RapidMlx(OtherServer):
    """`rapid-mlx serve`, whose program lies in an environment of its own."""

    name = "Rapid-MLX"

    def __init__(self, program: str, model: Path, log: Path) -> None:
        arguments = ["serve", str(model), "--host", _HOST, *_NATIVE_RESULTS]
        super().__init__(arguments, log, str(model), program)


class HealthProbe:
    """Asks for a server's health every 20 ms, on one connection.

    mlx_lm.server closes the connection after each answer. The time of connecting again counts,
    since any client has to wait for it.
    """

    def __init__(self, address: Address) -> None:
        self.latencies_s: list[float] = []
        self._address = address
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, until: asyncio.Event) -> None:
        """Probe until the event, and wait for the last answer however long it takes."""
        due = time.perf_counter()
        while not until.is_set():
            began = time.perf_counter()
            await self._ask()
            ended = time.perf_counter()
            self.latencies_s.append(ended - began)
            due = max(due + _PROBE_INTERVAL_S, ended)
            await asyncio.sleep(due - ended)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _ask(self) -> None:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(*self._address)
        self._writer.write(_PROBE)
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = head.split(b" ", 2)[1]
        if status != b"200":
            raise FailedError(f"GET /health answered {status.decode()} under load.")
        if length := _LENGTH.search(head):
            await self._reader.readexactly(int(length[1]))
        else:
            await self._reader.read()
            self.close()
