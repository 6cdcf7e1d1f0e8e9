"""A worker that lies, floods or falls silent is a clear error for its model and nobody else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.faults import interpreter
from tests.support.gateway import Gateway, eventually
from tests.support.streams import Probe

QUESTION = "What is Bulkhead?"

FAULTS = {
    "another protocol version": (
        "connect().send(encode(hello(protocol_version=99))); wait()",
        "protocol version 99",
    ),
    "bytes that are no message": (
        "connect().send(b'\\xff' * 100); wait()",
        "unreadable frame",
    ),
    "an unknown type": (
        "import msgspec; connect().send(msgspec.msgpack.encode({'type': 'coup'})); wait()",
        "unreadable frame",
    ),
    "a truncated frame": (
        "connect().send(encode(hello())[:-5]); wait()",
        "unreadable frame",
    ),
    "a list that claims four billion items": (
        "connect().send(b'\\x82\\xa4type\\xa6output\\xa6deltas\\xdd\\xff\\xff\\xff\\xff'); wait()",
        "unreadable frame",
    ),
    "a frame over the limit": (
        "socket = connect(); socket.send(encode(hello())); socket.send(b'x' * (5 << 20)); wait()",
        "over the size limit",
    ),
    "somebody else's incarnation": (
        "connect().send(encode(hello(incarnation=77))); wait()",
        "incarnation 77",
    ),
    "ready before it was asked": (
        "connect().send(encode(ready())); wait()",
        "order of the protocol",
    ),
    "two hellos": (
        "socket = connect(); socket.send(encode(hello())); socket.send(encode(hello())); wait()",
        "order of the protocol",
    ),
    "exit 0 without a word": ("", "exit code 0"),
    "exit 7 with words": ("print('no GPU here'); sys.exit(7)", "no GPU here"),
}


def _config(python: str) -> str:
    return (
        '[models.demo]\npath = "demo"\n'
        f'[models.strange]\npath = "demo"\npython = "{python}"\n'
        "[workers]\nload_timeout_s = 30.0\nrestart_limit = 0\nbackoff_limit = 0\n"
    )


@pytest.mark.parametrize("name", FAULTS)
def test_faults_before_ready(
    name: str, start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    code, explanation = FAULTS[name]
    running = start_gateway(models=(), config=_config(interpreter(tmp_path / "bin", code)))
    answer = running.order("load", "strange")
    assert answer.status_code in (500, 503)
    assert explanation in answer.json()["error"]["message"]
    eventually(lambda: running.model("strange")["worker"] is None)
    assert running.model("strange")["last_exit"] is not None


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param("socket.send(encode(beat))", id="heartbeats"),
        pytest.param(
            "socket.send(encode(Output(step=1, deltas=(Delta('nobody', (1,), 'x' * 500000),))))",
            id="large outputs",
        ),
        pytest.param("print('x' * 10000)", id="lines"),
    ],
)
def test_a_flood_leaves_the_gateway_and_other_models_alone(
    flood: str, start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    code = f"""
socket = connect()
socket.send(encode(hello()))
socket.recv()
socket.send(encode(ready()))
beat = Heartbeat(step=1, step_age_s=0.0, active=0, waiting=0, memory=MlxMemory())
while True:
    {flood}
"""
    running = start_gateway(models=(), config=_config(interpreter(tmp_path / "bin", code)))
    whole = running.say(QUESTION)
    before = psutil.Process(running.pid).memory_info().rss
    # It is ready for a moment, and then ended for its flood unless that is of lines.
    running.order("load", "strange")
    assert running.model("strange")["worker"] or running.model("strange")["last_exit"]
    with Probe(running, "/health") as health:
        for _ in range(3):
            assert running.say(QUESTION) == whole
    assert not health.failures
    assert health.count > 10
    grown = psutil.Process(running.pid).memory_info().rss - before
    assert grown < 150e6, "what a flood can occupy is bounded by the high-water mark"
    killed = running.order("kill", "strange", force=True).json()
    assert killed["state"] in ("unloaded", "failed")


def test_a_worker_that_stops_reading(start_gateway: Callable[..., Gateway], tmp_path: Path) -> None:
    code = """
socket = connect()
socket.send(encode(hello()))
socket.recv()
socket.send(encode(ready()))
time.sleep(120)
"""
    running = start_gateway(
        models=(),
        config=_config(interpreter(tmp_path / "bin", code)) + "[queue]\ndeadline_s = 5.0\n",
    )
    running.load("strange")
    assert running.say(QUESTION)
    status = running.order("kill", "strange").json()
    assert status["state"] == "unloaded"
    assert status["last_exit"]["signal"] == "SIGTERM"
