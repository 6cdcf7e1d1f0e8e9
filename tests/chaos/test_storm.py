"""Operators who disagree, clients who come and go: no deadlock, nothing leaked."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.faults import EAGER_SPARES, sitecustomize
from tests.support.gateway import START_S, Gateway, chat_body, eventually
from tests.support.shapes import DEMO

MODELS = ("demo", f"{DEMO}=second", f"{DEMO}=third")
IDS = ("demo", "second", "third")
ORDERS = (
    ("load", {}),
    ("unload", {}),
    ("unload", {"force": True}),
    ("unload", {"hold": True}),
    ("restart", {}),
    ("restart", {"force": True}),
    ("kill", {}),
    ("kill", {"force": True}),
)
STORY = "Tell me a story."
# A request that meets a hold, a kill or a full queue is told so; nothing else may happen to it.
EXPECTED_STATUSES = {200, 429, 503, 504}
LONGEST_S = 120.0
SETTLED = ("unloaded", "held", "ready")

_COUNT_TASKS = """
import signal
def count_tasks(*_):
    import asyncio, gc
    gc.collect()
    tasks = [each for each in gc.get_objects() if isinstance(each, asyncio.Task)]
    with open({path!r}, "a") as file:
        print(sum(not each.done() for each in tasks), file=file)
if not in_worker():
    signal.signal(signal.SIGWINCH, count_tasks)
"""


class Storm:
    """Threads that order and ask until the time is over."""

    def __init__(self, gateway: Gateway, seed: int, operations: int, seconds: float) -> None:
        self.problems: list[str] = []
        self.answers = self.refusals = self.orders = 0
        self._gateway = gateway
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._left = operations
        self._pause_s = seconds / operations
        self._threads = [threading.Thread(target=self._act) for _ in range(8)]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(LONGEST_S * 3)
        assert not any(thread.is_alive() for thread in self._threads), "deadlock"

    def _act(self) -> None:
        with httpx.Client(base_url=self._gateway.url, timeout=LONGEST_S) as client:
            while True:
                with self._lock:
                    if self._left == 0:
                        return
                    self._left -= 1
                    order = self._chance.random() < 0.5
                    model_id = self._chance.choice(IDS)
                    verb, options = self._chance.choice(ORDERS)
                    leaves = self._chance.random() < 0.3
                    stream = self._chance.random() < 0.5
                    pause_s = self._chance.random() * 16 * self._pause_s
                try:
                    if order:
                        self._order(client, model_id, verb, options)
                    else:
                        self._ask(client, model_id, stream=stream, leaves=leaves)
                except (httpx.HTTPError, AssertionError) as error:
                    self.problems.append(f"{model_id} {verb if order else 'ask'}: {error!r}")
                time.sleep(pause_s)

    def _order(self, client: httpx.Client, model_id: str, verb: str, options: object) -> None:
        answer = client.post(f"/admin/v1/models/{model_id}/{verb}", json=options)
        assert answer.status_code in (200, 503), answer.text
        self.orders += 1

    def _ask(self, client: httpx.Client, model_id: str, *, stream: bool, leaves: bool) -> None:
        body = chat_body(STORY, model_id, stream=stream, max_tokens=100)
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code in EXPECTED_STATUSES, answer.read()
            if leaves:
                return
            text = answer.read().decode()
        ended = "[DONE]" in text or "finish_reason" in text
        assert ended or "error" in text, text[-300:]
        if ended:
            self.answers += 1
        else:
            self.refusals += 1


@pytest.mark.parametrize(
    ("operations", "seconds"),
    [
        pytest.param(45, 6, id="short", marks=pytest.mark.slow),
        pytest.param(200, 60, id="long", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.timeout(600)
def test_everything_comes_to_rest(
    operations: int,
    seconds: float,
    start_gateway: Callable[..., Gateway],
    tmp_path: Path,
    tell: Callable[..., None],
    seed: int,
) -> None:
    counts = tmp_path / "tasks"
    gateway = start_gateway(
        "--spare",
        "1",
        models=MODELS,
        config="[workers]\nrestart_limit = 1000\n[gateway]\ndrain_s = 5.0\n",
        environment=sitecustomize(
            tmp_path / "site", EAGER_SPARES + _COUNT_TASKS.format(path=str(counts))
        ),
    )
    whole = gateway.say(STORY, max_tokens=100)
    for identifier in IDS:
        # Its log stays open from now on.
        gateway.load(identifier)
        gateway.order("unload", identifier).raise_for_status()
    before = _resources(gateway, counts)

    began = time.monotonic()
    storm = Storm(gateway, seed, operations, seconds)
    storm.run()
    lasted_s = time.monotonic() - began
    assert not storm.problems, storm.problems

    asked_for = {}
    for identifier, (verb, options, state) in zip(IDS, _last_orders(seed), strict=True):
        eventually(lambda e=identifier: gateway.model(e)["state"] in SETTLED, START_S)
        # What is held stays held until it is loaded.
        held = state == "unloaded" and gateway.model(identifier)["state"] == "held"
        asked_for[identifier] = "held" if held else state
        gateway.order(verb, identifier, **options)
    for text, state in asked_for.items():
        eventually(lambda e=text, s=state: gateway.model(e)["state"] == s, START_S)
    time.sleep(1)
    assert {identifier: gateway.model(identifier)["state"] for identifier in IDS} == asked_for, (
        "they stay there"
    )

    for identifier in IDS:
        gateway.load(identifier)
        assert gateway.say(STORY, identifier, max_tokens=100) == whole
        gateway.order("unload", identifier).raise_for_status()
    after = _resources(gateway, counts)
    assert after == before
    tell(
        operations=operations,
        seconds=f"{lasted_s:.0f}",
        orders=storm.orders,
        answers=storm.answers,
        refusals=storm.refusals,
        **{name: f"{before[name]} -> {after[name]}" for name in before},
    )


def _last_orders(seed: int) -> list[tuple[str, dict[str, bool], str]]:
    """Three orders with the states that they ask for."""
    choices: list[tuple[str, dict[str, bool], str]] = [
        ("load", {}, "ready"),
        ("unload", {}, "unloaded"),
        ("unload", {"hold": True}, "held"),
        ("restart", {}, "ready"),
    ]
    return random.Random(seed).sample(choices, 3)


def _resources(gateway: Gateway, counts: Path) -> dict[str, int]:
    """What a gateway at rest holds: with its spare, and without a connection."""
    gateway.client.close()
    gateway.client = httpx.Client(base_url=gateway.url, timeout=120.0)
    process = psutil.Process(gateway.pid)

    def reading() -> dict[str, int]:
        seen = len(counts.read_text().split()) if counts.exists() else 0
        process.send_signal(signal.SIGWINCH)
        eventually(lambda: counts.exists() and len(counts.read_text().split()) > seen)
        return {
            "descriptors": process.num_fds(),
            "processes": len(process.children(recursive=True)),
            "sockets": len(list((gateway.state_dir / "run").iterdir())),
            "records": len(list((gateway.state_dir / "workers").iterdir())),
            "tasks": int(counts.read_text().split()[-1]),
        }

    def settled() -> dict[str, int] | None:
        first = reading()
        time.sleep(1.5)
        second = reading()
        at_rest = first == second and second["processes"] == 1
        return second if at_rest else None

    result: dict[str, int] = eventually(settled, START_S)
    return result
