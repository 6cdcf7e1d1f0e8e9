"""A gateway that is replaced under its clients, who don't notice, whatever the next one is like."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.gateway import BULKHEAD, START_S, Gateway, eventually, gone
from tests.support.streams import Stream, open_stream

_MODELS = ("a", "b")
_QUESTIONS = ("Tell me a story.", "What is Bulkhead?", "Hello")


@pytest.fixture(scope="module")
def gateway(installation: Path) -> Iterator[Gateway]:
    running = Gateway(
        models=tuple(f"demo={model}" for model in _MODELS),
        environment={"PYTHONPATH": str(installation)},
    )
    for model in _MODELS:
        running.load(model)
    yield running
    # The last test kills who serves.
    assert running.stop() == 1, running.log


@pytest.fixture(scope="module")
def undisturbed(gateway: Gateway) -> list[tuple[object, ...]]:
    return [stream.join().outcome for stream in _streams(gateway)]


def _streams(gateway: Gateway) -> list[Stream]:
    return [
        open_stream(
            gateway,
            _QUESTIONS[index % 3],
            _MODELS[index % 2],
            max_tokens=250,
            ignore_eos=True,
            seed=index,
            temperature=1.0 if index % 2 else 0.0,
            stream_options={"include_usage": True},
        )
        for index in range(6)
    ]


def _upgrade(gateway: Gateway) -> httpx.Response:
    return gateway.client.post("/admin/v1/upgrade")


def _workers(gateway: Gateway) -> dict[str, int]:
    return {model: gateway.worker_pid(model) for model in _MODELS}


@contextmanager
def _changed(path: Path, change: Callable[[str], str]) -> Iterator[None]:
    before = path.read_text("utf-8")
    path.write_text(change(before), "utf-8")
    try:
        yield
    finally:
        path.write_text(before, "utf-8")


def _begun(streams: list[Stream]) -> None:
    eventually(lambda: all(stream.text or stream.error for stream in streams), START_S)


def _get(connection: http.client.HTTPConnection, path: str) -> int:
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    return answer.status


class _Response(threading.Thread):
    """An answer that is stored, which the mailbox makes, as it is streamed to its client."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(daemon=True)
        self.begun = threading.Event()
        self.lines: list[str] = []
        self._url = gateway.url
        self.start()

    def run(self) -> None:
        body = {
            "model": "a",
            "input": "Tell me a story.",
            "stream": True,
            "max_output_tokens": 200,
            "temperature": 0,
        }
        with httpx.stream("POST", f"{self._url}/v1/responses", json=body, timeout=120) as answer:
            for line in answer.iter_lines():
                if "output_text.delta" in line:
                    self.begun.set()
                self.lines.append(line)

    @property
    def kinds(self) -> list[str]:
        self.join(120)
        return [line.removeprefix("event: ") for line in self.lines if line.startswith("event: ")]


def test_upgrade_disturbs_no_client(
    gateway: Gateway, undisturbed: list[tuple[object, ...]]
) -> None:
    workers, pids = _workers(gateway), [gateway.status()["pid"]]
    events = len(gateway.events("ready"))
    idle = http.client.HTTPConnection(httpx.URL(gateway.url).host, httpx.URL(gateway.url).port)
    assert _get(idle, "/livez") == 200
    # Nothing else than the connection that there is.
    idle.auto_open = 0
    for _ in range(2):
        streams, response = _streams(gateway), _Response(gateway)
        _begun(streams)
        assert response.begun.wait(120)
        # From its beginning on a head has 20 s.
        slow = socket.create_connection(idle.sock.getpeername(), 120)
        slow.sendall(b"GET /livez HTTP/1.1\r\nHo")
        # The same connection before, during and after it.
        answer = _upgrade(gateway).raise_for_status().json()
        assert answer["pid_before"] == pids[-1]
        pids.append(answer["pid"])
        slow.sendall(b"st: localhost\r\n\r\n")
        assert slow.recv(12) == b"HTTP/1.1 200"
        slow.close()
        assert gateway.status()["pid"] == answer["pid"]
        assert [stream.join().outcome for stream in streams] == undisturbed
        assert response.kinds[-1] == "response.incomplete"
        assert _get(idle, "/livez") == 200
    idle.close()
    assert len(set(pids)) == 3
    assert _workers(gateway) == workers
    assert [stream.join().outcome for stream in _streams(gateway)] == undisturbed
    # Those before are remembered, and no model was loaded since.
    assert len(gateway.events("ready")) == events
    eventually(lambda: gone(pids[1]))
    below = psutil.Process(gateway.pid)
    assert "gateway" not in below.cmdline()[:5]


def test_successor_that_crashes_at_its_start(
    gateway: Gateway, installation: Path, undisturbed: list[tuple[object, ...]]
) -> None:
    workers, pid = _workers(gateway), gateway.status()["pid"]
    streams = _streams(gateway)
    _begun(streams)
    with _changed(installation / "gateway/server/process.py", lambda _: "raise RuntimeError('oh')"):
        refused = _upgrade(gateway)
    assert refused.status_code == 503
    assert "RuntimeError: oh" in refused.json()["error"]["message"]
    assert [stream.join().outcome for stream in streams] == undisturbed
    assert (_workers(gateway), gateway.status()["pid"]) == (workers, pid)


def test_successor_that_speaks_a_newer_protocol(gateway: Gateway, installation: Path) -> None:
    workers, pid = _workers(gateway), gateway.status()["pid"]
    with _changed(
        installation / "protocol/answers.py",
        lambda text: text.replace('"internal_error"', '"internal_error", "out_of_sorts"'),
    ):
        refused = subprocess.run(
            [BULKHEAD, "upgrade", "--url", gateway.url],
            env={**os.environ, "BULKHEAD_STATE_DIR": str(gateway.state_dir)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert refused.returncode == 1
    assert "speaks protocol" in refused.stderr
    assert "takes a restart" in refused.stderr
    assert (_workers(gateway), gateway.status()["pid"]) == (workers, pid)


def test_successor_that_is_no_program(gateway: Gateway, tmp_path: Path) -> None:
    ended = tmp_path / "python"
    ended.write_text("#!/bin/sh\necho no such thing >&2; exit 3\n", "utf-8")
    ended.chmod(0o755)
    refused = subprocess.run(
        [BULKHEAD, "upgrade", "--url", gateway.url, "--python", str(ended)],
        env={**os.environ, "BULKHEAD_STATE_DIR": str(gateway.state_dir)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert refused.returncode == 1
    assert "status 3: no such thing" in refused.stderr


def test_successor_that_dies_during_the_hand_over(
    gateway: Gateway, installation: Path, undisturbed: list[tuple[object, ...]]
) -> None:
    """Its workers die with it, those that it had: requests go on under the present gateway."""
    pid = gateway.status()["pid"]
    streams = _streams(gateway)
    _begun(streams)
    with _changed(
        installation / "gateway/server/upgrade/takeover.py",
        lambda text: text.replace("self._inheritance.adopt_stderr()", "os._exit(7)"),
    ):
        refused = _upgrade(gateway)
    assert refused.status_code == 503
    assert "status 7" in refused.json()["error"]["message"]
    assert [stream.join().outcome for stream in streams] == undisturbed
    assert gateway.status()["pid"] == pid
    assert gateway.say("Hello", "b")


def test_a_worker_that_was_handed_over_is_missed(
    gateway: Gateway, undisturbed: list[tuple[object, ...]]
) -> None:
    """By who is no parent of it."""
    _upgrade(gateway).raise_for_status()
    streams = _streams(gateway)
    _begun(streams)
    for pid in _workers(gateway).values():
        os.kill(pid, signal.SIGKILL)
    assert [stream.join().outcome for stream in streams] == undisturbed
    unloaded = gateway.order("unload", "a").raise_for_status().json()
    assert unloaded["state"] == "unloaded"
    gateway.load("a")


def test_signals_are_handed_on(gateway: Gateway) -> None:
    """To who serves, by the process that everybody knows. What is held stays so."""
    pid, worker = gateway.status()["pid"], gateway.worker_pid("a")
    assert pid != gateway.pid
    gateway.order("unload", "b", hold=True).raise_for_status()
    reloads = len(gateway.events("reload"))
    os.kill(gateway.pid, signal.SIGHUP)
    eventually(lambda: len(gateway.events("reload")) > reloads)
    os.kill(gateway.pid, signal.SIGUSR2)
    eventually(lambda: gateway.status()["pid"] != pid, START_S)
    assert gateway.worker_pid("a") == worker
    assert gateway.model("b")["state"] == "held"
    assert gateway.chat("Hello", "b").status_code == 503


def test_the_end_of_who_serves_is_everybodys(gateway: Gateway) -> None:
    pid, worker = gateway.status()["pid"], gateway.worker_pid("a")
    eventually(lambda: "gateway" not in psutil.Process(gateway.pid).cmdline(), START_S)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: gone(worker))
    # A service manager starts it again for that.
    assert gateway.process.wait(120) == 1
