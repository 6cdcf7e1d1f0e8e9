"""The gateway is killed in any state of its workers: nobody is left behind, the next one serves."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.faults import EAGER_SPARES, after_import, in_engine_step, sitecustomize
from tests.support.gateway import START_S, Gateway, eventually, gone
from tests.support.streams import open_stream

STORY = "Tell me a story."
LONG = {"max_tokens": 3500, "ignore_eos": True}

# A minute in each of the states that are over too soon to be met.
SLOW = {
    "spare": EAGER_SPARES,
    "loading": after_import(
        "worker.load.loading",
        """
        import time
        original = module.load
        def slow(*arguments, **options):
            time.sleep(60)
            return original(*arguments, **options)
        module.load = slow
        """,
    ),
    "stopping": after_import(
        "worker.system.memory",
        """
        import time
        module.release_memory = lambda: time.sleep(60)
        """,
    ),
    "prefill": in_engine_step("time.sleep(60)"),
    "backoff": after_import("worker.load.loading", "import os; os._exit(3)"),
}
SHORT = ("generating",)
LONGER = ("loading", "starting", "stopping", "stopped", "spare")
STATES = (
    "starting",
    "loading",
    "ready",
    "prefill",
    "generating",
    "draining",
    "stopping",
    "backoff",
    "stopped",
    "spare",
)


def _enter(gateway: Gateway, state: str) -> None:
    """Bring the demo model into a state, as far as that is one."""
    if state in ("starting", "loading", "backoff"):
        gateway.order("load", wait=False)
        eventually(lambda: gateway.model()["state"] == state, START_S)
        return
    if state == "spare":
        eventually(lambda: "change=ready" in gateway.log, START_S)
        return
    gateway.load()
    if state in ("generating", "draining", "prefill", "stopped"):
        stream = open_stream(gateway, STORY, **LONG)
        eventually(
            lambda: gateway.model()["active_requests"] if state == "prefill" else stream.text,
            START_S,
        )
    if state in ("draining", "stopping"):
        gateway.order("unload" if state == "draining" else "kill", wait=False)
        eventually(lambda: gateway.model()["state"] == state, START_S)
    if state == "stopped":
        os.kill(gateway.worker_pid(), signal.SIGSTOP)


def _kill_in(state: str, folder: Path) -> tuple[float, float]:
    """Seconds until the last worker was gone, and until the next gateway had answered."""
    running = Gateway(
        *(("--spare", "1") if state == "spare" else ()),
        config="[workers]\nrestart_limit = 0\nbackoff_first_s = 30.0\n",
        environment=sitecustomize(folder, SLOW.get(state, "")),
    )
    _enter(running, state)
    workers = [child.pid for child in psutil.Process(running.pid).children(recursive=True)]
    assert workers or state == "backoff"
    os.kill(running.pid, signal.SIGKILL)
    running.process.wait()
    began = time.monotonic()
    if state != "stopped":
        eventually(lambda: all(gone(pid) for pid in workers), every_s=0.02)
    gone_s = time.monotonic() - began
    began = time.monotonic()
    again = Gateway("--state-dir", str(running.state_dir))
    try:
        assert again.say("Hello")
        seconds = time.monotonic() - began
        assert all(gone(pid) for pid in workers)
        leftovers = [int(path.stem) for path in (running.state_dir / "workers").iterdir()]
        assert leftovers == [again.worker_pid()]
    finally:
        assert again.stop() == 0, again.log
        shutil.rmtree(running.state_dir.parent, ignore_errors=True)
    return gone_s, seconds


@pytest.mark.parametrize(
    ("rounds", "state"),
    [
        *((1, state) for state in SHORT),
        *(pytest.param(1, state, marks=pytest.mark.slow) for state in LONGER),
        *(pytest.param(20, state, marks=pytest.mark.chaos) for state in STATES),
    ],
)
@pytest.mark.timeout(900)
def test_no_process_is_left_behind(
    rounds: int, state: str, tmp_path: Path, tell: Callable[..., None]
) -> None:
    times = [_kill_in(state, tmp_path / str(index)) for index in range(rounds)]
    tell(
        rounds=rounds,
        slowest_worker_gone_after=f"{max(gone for gone, _ in times):.2f} s",
        slowest_next_answer_after=f"{max(answered for _, answered in times):.2f} s",
    )
