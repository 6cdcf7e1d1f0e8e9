"""A worker that lies, floods or falls silent is a clear error for its model and nobody else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
import zmq

from protocol.life import Heartbeat, MlxMemory
from protocol.messages import encode
from tests.cli.terminal import bulkhead, read_until, started
from tests.support.faults import interpreter, sitecustomize, wrapped_python
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.strangers import strangers
from tests.support.streams import Probe

QUESTION = "Hello"

FAULTS = {
    "another protocol version": (
        "connect().send(encode(hello(protocol_version='99'))); wait()",
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


# Said before whatever a worker does once it is ready.
READY = """
socket = connect()
socket.send(encode(hello()))
socket.recv()
socket.send(encode(ready()))
large = Output(step=1, deltas=(Delta("nobody", (1,), (Text("x" * 500000),)),))
beat = Heartbeat(step=1, step_age_s=0.0, active=0, waiting=0, memory=MlxMemory())
"""
FLOODS = {
    "heartbeats": "socket.send(encode(beat))",
    "large outputs": "socket.send(encode(large))",
    "lines": "print('x' * 10000)",
}
# It reads nothing, but its heart beats: nobody but the test ends it, however long that takes.
BEATS = "while True: socket.send(encode(beat)); time.sleep(0.5)"
AFTER_READY = {
    **{name: f"while True: {flood}" for name, flood in FLOODS.items()},
    # Held for a client that reads slowly, it would grow without an end.
    "wordy": """
while not isinstance(task := decode_from_gateway(socket.recv()), Generate):
    pass
socket.send(encode(Rendered(request_id=task.request_id, token_ids=b"\\0" * 28, last=True)))
said = Output(step=1, deltas=(Delta(task.request_id, (), (Text("x" * 10000),)),))
while True:
    socket.send(encode(said))
    time.sleep(0.01)
""",
    "silent": BEATS,
    "closing": "socket.close(); wait()",
    "deaf": f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{BEATS}",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Gateway]:
    """One with the demo model, and a model for each fault.

    A process whose pid is the name of a file in the folder survives the gateway's SIGKILL, as one
    does that is stuck in a system call.
    """
    stuck = f"""
        import os, signal
        original = os.kill
        def kill(pid, number):
            if number != signal.SIGKILL or not os.path.exists({str(folder)!r} + f"/{{pid}}"):
                original(pid, number)
        if not in_worker():
            os.kill = kill
        """
    codes = {name: code for name, (code, _) in FAULTS.items()}
    codes |= {name: READY + code for name, code in AFTER_READY.items()}
    # It connects once everybody else has had the time to.
    late = wrapped_python(folder / "late", f"until [ -e {folder}/come ]; do sleep 0.05; done")
    models = f'[models.late]\npath = "demo"\npython = "{late}"\n'
    models += "".join(
        f'[models."{name}"]\npath = "demo"\npython = "{interpreter(folder / name, code)}"\n'
        for name, code in codes.items()
    )
    running = Gateway(
        models=(),
        config="[workers]\nload_timeout_s = 120.0\nrestart_limit = 0\nbackoff_limit = 0\n"
        f'[models.demo]\npath = "demo"\n{models}',
        environment=sitecustomize(folder / "site", stuck),
    )
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture(scope="module")
def whole(gateway: Gateway) -> str:
    return gateway.say(QUESTION)


@pytest.fixture(scope="module")
def answers(gateway: Gateway) -> dict[str, httpx.Response]:
    """What loads end with, all side by side."""
    with ThreadPoolExecutor(len(FAULTS)) as pool:
        asked = {name: pool.submit(gateway.order, "load", name) for name in FAULTS}
    return {name: future.result() for name, future in asked.items()}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_before_ready(
    name: str, gateway: Gateway, answers: dict[str, httpx.Response]
) -> None:
    assert answers[name].status_code in (500, 503)
    assert FAULTS[name][1] in answers[name].json()["error"]["message"]
    eventually(lambda: gateway.model(name)["worker"] is None)
    assert gateway.model(name)["last_exit"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_leaves_the_gateway_and_other_models_alone(
    flood: str, gateway: Gateway, whole: str
) -> None:
    before = psutil.Process(gateway.pid).memory_info().rss
    # It is ready for a moment, and then ended for its flood unless that is of lines.
    gateway.order("load", flood)
    assert gateway.model(flood)["worker"] or gateway.model(flood)["last_exit"]
    with Probe(gateway, "/health") as health:
        for _ in range(3):
            assert gateway.say(QUESTION) == whole
    assert not health.failures
    assert health.count > 10
    grown = psutil.Process(gateway.pid).memory_info().rss - before
    assert grown < 150e6, "what a flood can occupy is bounded by the high-water mark"
    killed = gateway.order("kill", flood, force=True).json()
    assert killed["state"] in ("unloaded", "failed")


@pytest.mark.slow
def test_text_without_tokens_has_a_bound(gateway: Gateway, whole: str) -> None:
    gateway.load("wordy")
    assert gateway.chat(QUESTION, "wordy").status_code in (500, 503)
    assert "it sent a longer text than 0 tokens have" in gateway.log
    assert gateway.say(QUESTION) == whole


@pytest.mark.slow
def test_strangers_on_a_workers_socket(gateway: Gateway, whole: str, folder: Path) -> None:
    """Whether they come first and stay, or come and go: the worker doesn't notice."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    gateway.order("load", "late", wait=False)
    worker = eventually(lambda: gateway.model("late")["worker"], START_S)
    path = gateway.state_dir / "run" / f"{worker['incarnation']}.sock"
    lie = Heartbeat(step=1, step_age_s=0.0, active=0, waiting=0, memory=MlxMemory())
    with strangers(context, path, encode(lie)):
        (folder / "come").touch()
        assert gateway.say(QUESTION, "late") == whole
    for _ in range(3):
        with strangers(context, path, encode(lie)):
            pass
        assert gateway.say(QUESTION, "late") == whole
    # One that closes its connection later than the strangers did theirs is ended for it.
    gateway.order("load", "closing")
    ended = eventually(lambda: (m := gateway.model("closing"))["worker"] is None and m)
    assert "it closed its connection" in ended["last_exit"]["reason"]
    assert gateway.say(QUESTION, "late") == whole
    assert gateway.model("late")["worker"]["incarnation"] == worker["incarnation"]
    context.destroy(linger=0)


@pytest.mark.slow
def test_a_worker_that_stops_reading(gateway: Gateway, whole: str) -> None:
    gateway.load("silent")
    assert gateway.say(QUESTION) == whole
    status = gateway.order("kill", "silent").json()
    assert status["state"] == "unloaded"
    assert status["last_exit"]["signal"] == "SIGTERM"


@pytest.mark.slow
@pytest.mark.slow
def test_a_process_that_survives_sigkill(gateway: Gateway, whole: str, folder: Path) -> None:
    """It stays counted and shown, its end is told step by step, and nobody else is concerned."""
    pid = gateway.load("deaf")["worker"]["pid"]
    (folder / str(pid)).touch()
    with started("events", "-f", "-n", "0", "--model", "deaf", url=gateway.url) as following:
        killed = bulkhead("kill", "deaf", url=gateway.url)
        assert killed.returncode == 1
        assert f"deaf is stopping (pid {pid}" in killed.stderr
        assert "its process has not ended yet" in killed.stderr
        stuck = gateway.model("deaf")
        assert (stuck["state"], stuck["worker"]["pid"]) == ("stopping", pid)
        assert stuck["worker"]["footprint_bytes"] > 1_000_000
        floors = [model["floor_bytes"] or 0 for model in gateway.status()["models"]]
        assert stuck["floor_bytes"] > 0
        assert gateway.status()["memory"]["granted_bytes"] >= sum(floors)
        assert f" {pid} " in bulkhead("status", url=gateway.url).stdout
        assert gateway.chat(QUESTION, "deaf", headers={"X-Deadline-S": "1"}).status_code == 504
        assert gateway.order("restart").json()["state"] == "ready"
        assert gateway.say(QUESTION) == whole

        granted_bytes = gateway.status()["memory"]["granted_bytes"]
        os.kill(pid, signal.SIGKILL)
        model = eventually(lambda: (m := gateway.model("deaf"))["worker"] is None and m)
        assert (model["state"], model["last_exit"]["signal"]) == ("unloaded", "SIGKILL")
        assert gateway.status()["memory"]["granted_bytes"] < granted_bytes
        os.kill(gateway.load("deaf")["worker"]["pid"], signal.SIGKILL)
        told = read_until(following, "  breaker  ")

    steps = [event for event in gateway.events("escalation") if event["pid"] == pid]
    assert [step["outlived"] for step in steps] == ["being asked to stop", "SIGTERM", "SIGKILL"]
    for step in steps:
        assert step["seconds"] >= 1
        numbers = f"pid={pid} outlived={step['outlived']} seconds={step['seconds']}"
        assert f"  deaf  escalation  {numbers}\n" in told
    breaker = next(entry for entry in gateway.events("breaker") if entry["model"] == "deaf")
    assert (breaker["verdict"], breaker["deaths"]) == ("give up", 1)
    assert breaker["next_attempt_s"] == 300
    assert "  deaf  breaker  verdict=give up deaths=1 next_attempt_s=300.0" in told
