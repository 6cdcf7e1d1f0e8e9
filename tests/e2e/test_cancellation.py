"""A client that leaves costs at most two more engine steps, also in the middle of a prefill."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support import shapes
from tests.support.faults import in_engine_step, sitecustomize
from tests.support.gateway import Gateway, chat_body, eventually
from tests.support.streams import Probe, open_stream

pytestmark = pytest.mark.slow

# Long enough for the news to reach a worker on a machine that does much else.
STEP_S = 1.0


def test_at_most_two_steps_after_the_client_has_left(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    steps = tmp_path / "steps"
    running = start_gateway(
        environment=sitecustomize(
            tmp_path / "site",
            in_engine_step(
                f"""
                with open({str(steps)!r}, "a") as file:
                    file.write(f"{{time.time()}}\\n")
                time.sleep({STEP_S})
                """
            ),
        )
    )
    running.load()
    body = chat_body("Tell me a story.", stream=True, max_tokens=1000)
    with httpx.Client(timeout=60) as client:
        with client.stream("POST", f"{running.url}/v1/chat/completions", json=body) as answer:
            next(answer.iter_lines())
        left_at = time.time()
    eventually(lambda: running.model()["active_requests"] == 0)
    eventually(lambda: running.model()["worker"]["last_step_age_s"] > 2.5 * STEP_S)
    began = [float(line) for line in steps.read_text().split()]
    assert sum(1 for number in began if number > left_at) <= 2


STALL_S = 10.0


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(STALL_S + 1, id="short"),
        pytest.param(150, id="long"),
    ],
)
@pytest.mark.timeout(400)
def test_a_long_prefill_stalls_nobody(
    seconds: float, start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    dense = shapes.dense(tmp_path / "dense")
    running = start_gateway(
        models=(str(dense), "demo"), config=f"[workers]\nstall_timeout_s = {STALL_S}\n"
    )
    undisturbed = running.say("Tell me a story.", max_tokens=60)
    running.load("dense")
    body = chat_body(
        "The water rose behind the closed door. " * 700, "dense", stream=True, max_tokens=5
    )
    with (
        Probe(running, "/health") as health,
        Probe(running, "/livez") as livez,
        httpx.Client(timeout=300) as client,
        client.stream("POST", f"{running.url}/v1/chat/completions", json=body) as answer,
    ):
        lines = answer.iter_lines()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert next(lines) in ("", ": waiting")
            age_s = running.model("dense")["worker"]["last_step_age_s"]
            assert age_s is None or age_s < STALL_S, "chunks are bounded in time"
            other = open_stream(running, "Tell me a story.", max_tokens=60)
            assert other.join().text == undisturbed
    assert running.events("hang") == [], "a chunk is progress"
    assert not health.failures + livez.failures
    print(f"slowest /health {health.slowest_s * 1e3:.1f} ms, /livez {livez.slowest_s * 1e3:.1f} ms")
    eventually(lambda: running.model("dense")["active_requests"] == 0)
    eventually(lambda: running.model("dense")["worker"]["last_step_age_s"] > 3)
