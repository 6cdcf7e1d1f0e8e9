"""Five models in a budget that holds two, and many clients: never over it, nobody lost."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support import shapes
from tests.support.gateway import Gateway
from tests.support.held import Sampler

NAMES = ("a", "b", "c", "d", "e")
PROMPTS = ("Once upon a time", "A ship with seven holds", "What is a door?")


class Clients:
    """Threads that ask models at random, and compare the answers."""

    def __init__(self, gateway: Gateway, expected: dict[str, str], seconds: float) -> None:
        self.answers = 0
        self.problems: list[str] = []
        self.longest_s = 0.0
        self._url = gateway.url
        self._expected = expected
        self._until = time.monotonic() + seconds
        self._lock = threading.Lock()

    def run(self, count: int) -> None:
        threads = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(400)
        assert not any(thread.is_alive() for thread in threads)

    def _ask(self, seed: int) -> None:
        chance = random.Random(seed)
        with httpx.Client(base_url=self._url, timeout=300.0) as client:
            while time.monotonic() < self._until:
                prompt = chance.choice(PROMPTS)
                body = {"model": chance.choice(NAMES), "prompt": prompt} | FIELDS
                began = time.monotonic()
                answer = client.post("/v1/completions", json=body)
                waited_s = time.monotonic() - began
                with self._lock:
                    self.longest_s = max(self.longest_s, waited_s)
                    if answer.status_code != 200:
                        self.problems.append(answer.text)
                    elif answer.json()["choices"][0]["text"] != self._expected[prompt]:
                        self.problems.append(f"another text for {prompt!r}")
                    else:
                        self.answers += 1
                time.sleep(chance.random() * 0.5)


FIELDS = {"max_tokens": 16, "temperature": 0.0, "ignore_eos": True}


@pytest.mark.parametrize(
    ("megabytes", "seconds", "safe_s"),
    [
        pytest.param(100, 6, math.inf, id="short", marks=pytest.mark.slow),
        pytest.param(400, 120, None, id="long", marks=pytest.mark.chaos),
        pytest.param(400, 120, 20.0, id="long-with-kills", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.timeout(600)
def test_five_models_where_two_fit(
    megabytes: int,
    seconds: float,
    safe_s: float | None,
    start_gateway: Callable[..., Gateway],
    tmp_path: Path,
    tell: Callable[..., None],
) -> None:
    folder = shapes.sparse(tmp_path / "sparse", megabytes)
    models = tuple(f"{folder}={name}" for name in NAMES)
    probe = start_gateway(models=models[:1])
    granted = probe.load("a")["worker"]["granted_bytes"]
    expected = {}
    for prompt in PROMPTS:
        answer = probe.client.post(
            "/v1/completions", json={"model": "a", "prompt": prompt} | FIELDS
        )
        expected[prompt] = answer.json()["choices"][0]["text"]
    probe.stop()
    budget = int(granted * 2.5)
    gateway = start_gateway(
        *("--memory-budget", str(budget)),
        models=models,
        config="[queue]\nmax_wait_s = 4.0\n[workers]\nrestart_limit = 1000\n",
    )
    clients = Clients(gateway, expected, seconds)
    over = threading.Event()
    killer = threading.Thread(target=_kill_at_random, args=(gateway, over, safe_s))
    with Sampler(gateway) as sampler:
        if safe_s is not None:
            killer.start()
        clients.run(16)
        over.set()
        if safe_s is not None:
            killer.join(60)
        status = gateway.status()
    assert not clients.problems, clients.problems[:3]
    assert clients.answers >= 16
    # A short run held 335 MB of 535 MB.
    assert sampler.highest_bytes <= sampler.highest_peaks_bytes <= budget
    assert status["memory"]["granted_bytes"] <= budget
    evictions = gateway.log.count("event=evict")
    assert evictions > 2
    tell(
        answers=clients.answers,
        evictions=evictions,
        restarts=sum(model["restarts"] for model in status["models"]),
        highest_sum=f"{sampler.highest_bytes / 1e6:.0f} of {budget / 1e6:.0f} MB",
        highest_sum_of_peaks=f"{sampler.highest_peaks_bytes / 1e6:.0f} MB",
        samples=sampler.count,
        longest_answer=f"{clients.longest_s:.1f} s",
    )


def _kill_at_random(gateway: Gateway, over: threading.Event, safe_s: float) -> None:
    """Not the same model twice within `safe_s`: that would be the death of its requests."""
    chance = random.Random(1)
    killed_at = dict.fromkeys(NAMES, float("-inf"))
    with httpx.Client(base_url=gateway.url, timeout=120.0) as client:
        while not over.wait(chance.random() * 6):
            models = client.get("/admin/v1/status").json()["models"]
            now = time.monotonic()
            alive = [
                (model["id"], model["worker"]["pid"])
                for model in models
                if model["worker"] is not None and now - killed_at[model["id"]] >= safe_s
            ]
            if alive:
                name, pid = chance.choice(alive)
                killed_at[name] = now
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
