"""Every way in which a worker can go wrong, beside a model that must not notice."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.faults import (
    after_import,
    in_engine_step,
    interpreter,
    sitecustomize,
    wrapped_python,
)
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.shapes import DEMO
from tests.support.streams import Stream, open_stream

STORY = "Tell me a story."
LIMITS = """
[workers]
load_timeout_s = 30.0
restart_limit = 1
backoff_limit = 1
backoff_first_s = 0.2
breaker_retry_s = 300.0
heartbeat_timeout_s = 4.0
stall_timeout_s = 4.0
"""
BOUND_S = 120.0
TOKENS = 180
SHORT = (
    "the engine raises",
    "abort in the load",
    "abort in the first prefill",
    "exit 0 at once",
    "garbage on the first request",
    "a flood of heartbeats",
)
# They wait for a heartbeat or a step that doesn't come.
LONGER = ("stopped", "the engine sleeps", "nothing is read or said")


def _flagged(flag: Path, code: str) -> str:
    """Code that does something once, when the flag is there."""
    return f"""
if os.path.exists({str(flag)!r}):
    os.unlink({str(flag)!r})
{textwrap.indent(textwrap.dedent(code), "    ")}
"""


def _ask(gateway: Gateway, model_id: str, **fields: object) -> Stream:
    return open_stream(
        gateway,
        STORY,
        model_id,
        ignore_eos=True,
        stream_options={"include_usage": True},
        **fields,
    )


class Once(NamedTuple):
    """A fault that comes once. `code` runs in the victim's engine; none: it is stopped."""

    code: str | None
    tells: str
    log: str


ONCE = {
    "stopped": Once(None, "no heartbeat", "most recent call first"),
    "the engine raises": Once(
        "raise RuntimeError('a tensor too many')", "exit code 1", "RuntimeError: a tensor too many"
    ),
    "the engine sleeps": Once("time.sleep(3600)", "no engine step", "in step"),
    "the engine spins": Once("while True: pass", "no engine step", "most recent call first"),
    "abort in a step": Once("os.abort()", "SIGABRT", "Fatal Python error: Aborted"),
    "exit 0 without a word": Once("os._exit(0)", "exit code 0", ""),
}


def _names(*names: str) -> list[object]:
    """The first of each kind in the short form, all in the long one."""
    marks = {name: pytest.mark.chaos for name in names if name not in SHORT}
    marks |= {name: pytest.mark.slow for name in names if name in LONGER}
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Gateway]:
    """One with the demo model, a twin of it for what comes once, and one for each that comes back.

    What comes once has a flag of its name in the folder.
    """
    models = {"demo": "", "victim": ""}
    code = in_engine_step(
        "".join(_flagged(folder / name, fault.code) for name, fault in ONCE.items() if fault.code)
    )
    for name, fault in LOADS.items():
        code += _in_worker_of(name, fault.code)
        models[name] = wrapped_python(folder / "bin" / name, f"export VICTIM='{name}'")
    for name, fault in AFTER_READY.items():
        models[name] = _interpreter(folder / "bin" / f"{name}.d", fault.code)
    models["exit 0 at once"] = interpreter(folder / "bin" / "none", AT_ONCE.code)
    config = "".join(
        f'[models."{name}"]\npath = "{DEMO}"\n' + (f'python = "{python}"\n' if python else "")
        for name, python in models.items()
    )
    running = Gateway(
        models=(), config=LIMITS + config, environment=sitecustomize(folder / "site", code)
    )
    running.load("demo")
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture(scope="module")
def undisturbed(gateway: Gateway) -> tuple[object, ...]:
    return _ask(gateway, "demo", max_tokens=TOKENS).join().outcome


@pytest.mark.slow
@pytest.mark.parametrize("name", _names(*ONCE))
def test_a_fault_that_comes_once(
    name: str,
    gateway: Gateway,
    undisturbed: tuple[object, ...],
    folder: Path,
    tell: Callable[..., None],
) -> None:
    """The victim's answer goes on in another worker, the other model's never stops."""
    fault = ONCE[name]
    flag = folder / name
    restarts = gateway.load("victim")["restarts"]
    victim = _ask(gateway, "victim", max_tokens=TOKENS)
    eventually(lambda: victim.text, START_S)
    began = time.monotonic()
    if fault.code is None:
        os.kill(gateway.worker_pid("victim"), signal.SIGSTOP)
    else:
        flag.touch()
        eventually(lambda: not flag.exists(), START_S)
    other = _ask(gateway, "demo", max_tokens=TOKENS)
    assert victim.join(BOUND_S).outcome == undisturbed
    seconds = time.monotonic() - began
    assert other.join(BOUND_S).outcome == undisturbed
    model = gateway.model("victim")
    assert (model["state"], model["restarts"]) == ("ready", restarts + 1)
    exit_ = model["last_exit"]
    assert fault.tells in f"{exit_['reason']} signal {exit_['signal']} exit code {exit_['code']}"
    assert fault.log in "\n".join(exit_["log_tail"])
    tell(state=model["state"], after=f"{seconds:.1f} s", cause=exit_["reason"])


class Always(NamedTuple):
    """A fault that comes back with each worker."""

    code: str
    status: int
    error: str
    state: str
    tells: str


LOADS = {
    "abort in the load": Always(
        after_import("worker.load.loading", "import os\nmodule.load = lambda *_, **__: os.abort()"),
        503,
        "model_unavailable",
        "failed",
        "SIGABRT",
    ),
    "abort in the imports": Always(
        after_import("mlx_lm", "import os; os.abort()"),
        503,
        "model_unavailable",
        "failed",
        "SIGABRT",
    ),
    "abort in the first prefill": Always(
        in_engine_step("os.abort()"), 500, "worker_crashed", "unloaded", "SIGABRT"
    ),
    "a sleep in the first prefill": Always(
        in_engine_step("time.sleep(3600)"), 500, "worker_crashed", "unloaded", "no engine step"
    ),
}

# Each has said hello, got its load, and says that it is ready; then it gets one request.
AFTER_READY = {
    "exit 0 on the first request": Always(
        "socket.recv(); sys.exit(0)", 500, "worker_crashed", "unloaded", "exit code 0"
    ),
    "garbage on the first request": Always(
        "socket.recv(); socket.send(b'garbage'); wait()",
        500,
        "worker_crashed",
        "unloaded",
        "broke the protocol",
    ),
    "output before the prompt": Always(
        "generate = decode_from_gateway(socket.recv())\n"
        "delta = Delta(generate.request_id, (1,), (Text('x'),))\n"
        "socket.send(encode(Output(step=1, deltas=(delta,))))\n"
        "wait()",
        500,
        "worker_crashed",
        "unloaded",
        "before the prompt",
    ),
    "a flood of heartbeats": Always(
        "socket.recv()\nwhile True: socket.send(encode(beat))",
        500,
        "worker_crashed",
        "unloaded",
        "messages within a second",
    ),
    "a flood of output for nobody": Always(
        "socket.recv()\n"
        "delta = Delta('x', (1,), (Text('x' * 500000),))\n"
        "while True: socket.send(encode(Output(step=1, deltas=(delta,))))",
        500,
        "worker_crashed",
        "unloaded",
        "MB of messages within a second",
    ),
    "heartbeats, and nothing is read": Always(
        "while True: socket.send(encode(beat)); time.sleep(0.5)",
        500,
        "worker_crashed",
        "unloaded",
        "no engine step",
    ),
    "nothing is read or said": Always("wait()", 500, "worker_crashed", "unloaded", "no heartbeat"),
}
AT_ONCE = Always("", 503, "model_unavailable", "failed", "exit code 0")
ALWAYS = {**LOADS, **AFTER_READY, "exit 0 at once": AT_ONCE}


def _interpreter(folder: Path, code: str) -> str:
    return interpreter(
        folder,
        "beat = heartbeat()\n"
        "socket = connect()\n"
        "socket.send(encode(hello()))\n"
        "socket.recv()\n"
        "socket.send(encode(ready()))\n" + code,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", _names(*ALWAYS))
def test_a_fault_that_comes_always(
    name: str, gateway: Gateway, undisturbed: tuple[object, ...], tell: Callable[..., None]
) -> None:
    """The client gets its error, the model its state, and the other model never stops."""
    fault = ALWAYS[name]
    began = time.monotonic()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(gateway.chat, STORY, name)
        others = [_ask(gateway, "demo", max_tokens=TOKENS) for _ in range(2)]
        answer = asked.result(BOUND_S)
    seconds = time.monotonic() - began
    assert (answer.status_code, answer.json()["error"]["code"]) == (fault.status, fault.error)
    assert [other.join(BOUND_S).outcome for other in others] == [undisturbed] * 2
    # By way of backoff, which ends at once when nobody waits.
    model = eventually(lambda: (m := gateway.model(name))["state"] == fault.state and m, START_S)
    assert model["worker"] is None
    exit_ = model["last_exit"]
    assert fault.tells in f"{exit_['reason']} {exit_['signal']} exit code {exit_['code']}"
    if fault.state == "failed":
        assert fault.tells in model["reason"]
        assert "next attempt comes at" in model["reason"]
        assert int(answer.headers["retry-after"]) > 200
        starts = len(gateway.events("start"))
        assert gateway.chat(STORY, name).status_code == 503
        assert len(gateway.events("start")) == starts, "refused without a try"
    tell(answer=fault.error, state=model["state"], after=f"{seconds:.1f} s")


def _in_worker_of(name: str, code: str) -> str:
    return f"""
import os
if os.environ.get("VICTIM") == {name!r}:
{textwrap.indent(code, "    ")}
"""
