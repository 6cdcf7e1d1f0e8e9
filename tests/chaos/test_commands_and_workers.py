"""Commands and a worker within one budget: turns, loans, and growth beyond what was granted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gateway.memory.admission_round import OVERGROWN_S, RECALL_S
from tests.chaos.test_loans import CONFIG as LOANS
from tests.chaos.test_loans import Load
from tests.support import shapes
from tests.support.commands import serving, table
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.held import Sampler

pytestmark = pytest.mark.slow

# The floor of a command that grows.
COMMAND_BYTES = 100_000_000


@pytest.mark.parametrize(
    ("megabytes", "seconds"),
    [
        pytest.param(200, 5, id="short"),
        pytest.param(1600, 180, id="long", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.timeout(900)
def test_a_command_and_a_worker_take_turns_within_a_budget_for_one(
    megabytes: int, seconds: float, tmp_path: Path, tell: Callable[..., None]
) -> None:
    folder = shapes.sparse(tmp_path / "sparse", megabytes)
    config = f'[queue]\nmax_wait_s = 2\n[models.worker]\npath = "{folder}"\n'
    config += table("command", "--eat", str(megabytes), memory=f"{megabytes * 1.05 + 60:.0f}MB")
    with serving(config) as probe:
        floors = {name: probe.load(name)["floor_bytes"] for name in ("command", "worker")}
    budget_bytes = int(max(floors.values()) * 1.1)
    assert budget_bytes < sum(floors.values())
    config += f"[memory]\nbudget = {budget_bytes}\n" + table("large", memory="9GB")
    turns = 0
    with serving(config) as gateway, Sampler(gateway) as sampler:
        until = time.monotonic() + seconds
        while time.monotonic() < until or turns < 4:
            name = ("command", "worker")[turns % 2]
            assert gateway.chat("hi", name, max_tokens=4).status_code == 200
            assert gateway.status()["memory"]["granted_bytes"] <= budget_bytes
            turns += 1
        refused = gateway.chat("hi", "large")
        assert refused.status_code == 507
        assert "9.0 GB" in refused.text, "with the numbers"
        kinds = Counter(event["event"] for event in gateway.events())
        assert kinds["evict"] == turns - 1
        assert kinds["overgrown"] == 0
        for name in ("command", "worker"):
            gateway.order("unload", name)
        assert gateway.status()["memory"]["granted_bytes"] == 0
        assert not psutil.Process(gateway.pid).children(), "all of it comes back"
    assert sampler.highest_bytes <= budget_bytes, "never both"
    assert sampler.highest_bytes > megabytes << 20
    tell(
        turns=turns,
        most_of_budget=f"{sampler.highest_bytes / 1e6:.0f} of {budget_bytes / 1e6:.0f} MB",
        samples=sampler.count,
    )


def test_a_command_that_grows_gets_what_a_worker_has_borrowed(
    tmp_path: Path, tell: Callable[..., None]
) -> None:
    folder = shapes.wide_cache(tmp_path / "wide")
    config = (
        LOANS + f'[models.worker]\npath = "{folder}"\n' + table("command", memory=COMMAND_BYTES)
    )
    with serving(config) as probe:
        floor_bytes = probe.load("worker")["floor_bytes"]
    lent_bytes = 400_000_000
    budget_bytes = floor_bytes + COMMAND_BYTES + lent_bytes
    config = config.replace("[memory]\n", f"[memory]\nbudget = {budget_bytes}\n", 1)
    with serving(config) as gateway, Sampler(gateway) as sampler:
        gateway.load("command")
        load = Load(gateway, "worker", 8, 120)
        try:
            eventually(
                lambda: (gateway.model("worker")["lent_bytes"] or 0) > lent_bytes * 0.5, START_S
            )
            # An idle one would be evicted rather than anything busy.
            body = {"model": "command", "eat": 300, "max_tokens": 10_000, "stream": True}
            # A worker that gives back slowly, on a busy machine, costs the command its process.
            ended = _until_it_has(gateway, body, lent_bytes // 2)
        finally:
            load.stop()
        assert not load.problems
        assert len(load.texts) == 1
        gateway.order("unload", "command")
    # The command takes memory first, and is measured later.
    tell(
        most_of_budget=f"{sampler.highest_bytes / 1e6:.0f} of {budget_bytes / 1e6:.0f} MB",
        ended=ended,
    )


def _until_it_has(gateway: Gateway, body: dict[str, object], lent_bytes: int) -> int:
    """Ask the command until it may hold so much beyond its floor, and the worker less. Returns how
    often the command was ended before.
    """

    def lent() -> bool:
        # What the command can't give back becomes its floor, and is lent no more.
        worker = gateway.model("command")["worker"]
        return worker is not None and worker["granted_bytes"] > COMMAND_BYTES + lent_bytes

    for ended in range(5):
        with gateway.client.stream("POST", "/v1/chat/completions", json=body):
            eventually(
                lambda ended=ended: lent() or len(gateway.events("overgrown")) > ended,
                # The worker may take as long to answer, and the command to be ended.
                2 * (RECALL_S + OVERGROWN_S),
            )
            if lent():
                assert gateway.model("worker")["lent_bytes"] < lent_bytes
                return ended
    raise AssertionError("it never got what the worker had borrowed")


@pytest.mark.timeout(300)
def test_a_command_that_grows_while_it_loads_ends_before_anyone_busy(
    tell: Callable[..., None],
) -> None:
    config = "[memory]\nbudget = 500_000_000\n[workers]\nrestart_limit = 0\nbackoff_limit = 0\n"
    config += table("busy", "--eat", "200", memory="260MB")
    config += table("greedy", "--eat", "400", "--slow-start", "100", memory="100MB")
    with serving(config) as gateway:
        gateway.load("busy")
        body = {"model": "busy", "stream": True, "max_tokens": 10_000, "messages": []}
        with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            pieces = answer.iter_bytes()
            next(pieces)
            refused = gateway.chat("hi", "greedy")
            assert next(pieces)
        assert refused.status_code == 503
        assert "may hold 100 MB" in refused.text, refused.text
        assert [event["model"] for event in gateway.events("overgrown")] == ["greedy"]
        assert not gateway.events("evict")
    tell(told=refused.json()["error"]["message"])
