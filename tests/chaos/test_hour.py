"""Three models where two fit, conversations that go on and branch, kills: nothing grows."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from gateway.system.memory import footprint
from tests.support import shapes
from tests.support.faults import EAGER_SPARES, sitecustomize
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.held import held_at_once

NAMES = ("full", "window", "hybrid")
CLIENTS = 4
BOUND_BYTES = 16_000_000
# Longer than a start takes on a machine that does much else.
DEADLINE_S = 1200.0
CONFIG = f"""
[queue]
max_wait_s = 4.0
deadline_s = {DEADLINE_S}
[workers]
restart_limit = 10000
[prompt_cache]
disk = {BOUND_BYTES}
"""
# The same model isn't killed sooner: that would be the death of its requests.
SAFE_S = 60.0
# Files come and go while they are counted.
COUNTING_BYTES = 1_000_000
# An allocator's habits, beside what a leak would make of thousands of requests.
GROWTH_BYTES = 12_000_000
MOST_CHARACTERS = 4000
WORDS = (Path(__file__).parents[2] / "README.md").read_text("utf-8").split()


class Watcher:
    """What gateway, workers and the prompts on disk take, looked at again and again."""

    def __init__(self, gateway: Gateway, every_s: float) -> None:
        self.gateway_bytes: list[int] = []
        self.gateway_descriptors: list[int] = []
        self.workers_bytes: list[int] = []
        self.worker_descriptors: list[int] = []
        self.prompts_bytes: list[int] = []
        self.state_bytes: list[int] = []
        self._process = psutil.Process(gateway.pid)
        self._state_dir = gateway.state_dir
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _watch(self) -> None:
        while not self._over.wait(self._every_s):
            self.gateway_bytes.append(footprint(self._process.pid).current_bytes)
            self.gateway_descriptors.append(self._process.num_fds())
            workers = self._process.children(recursive=True)
            self.workers_bytes.append(sum(held_at_once(worker.pid for worker in workers).values()))
            for worker in workers:
                # It may have just ended.
                with contextlib.suppress(psutil.Error):
                    self.worker_descriptors.append(worker.num_fds())
            self.prompts_bytes.append(_payload_bytes(self._state_dir / "prompts"))
            self.state_bytes.append(_bytes(self._state_dir))


class Talk:
    """Clients with conversations that go on, branch and are asked for again."""

    def __init__(self, gateway: Gateway, seconds: float, pause_s: float) -> None:
        self.problems: list[str] = []
        self.answers = self.repeated = 0
        self.longest_s = 0.0
        self._url = gateway.url
        self._until = time.monotonic() + seconds
        self._pause_s = pause_s
        self._lock = threading.Lock()

    def run(self) -> None:
        threads = [threading.Thread(target=self._talk, args=(seed,)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self._until - time.monotonic() + DEADLINE_S)
        assert not any(thread.is_alive() for thread in threads), "a request without an end"

    def _talk(self, seed: int) -> None:
        chance = random.Random(seed)
        # What was asked of whom, and the answer.
        said: list[tuple[str, str, str]] = []
        with httpx.Client(base_url=self._url, timeout=2 * DEADLINE_S) as client:
            while time.monotonic() < self._until:
                model, prompt, expected = self._next(chance, said)
                answer = self._ask(client, model, prompt)
                if answer is not None:
                    said = [*said[-11:], (model, prompt, answer)]
                    if expected is not None and answer != expected:
                        self.problems.append(f"{model}: {expected!r} became {answer!r}")
                time.sleep(chance.random() * self._pause_s)

    def _next(
        self, chance: random.Random, said: list[tuple[str, str, str]]
    ) -> tuple[str, str, str | None]:
        """Whom to ask what, and the answer if it was asked before."""
        new = " ".join(chance.choices(WORDS, k=chance.randrange(5, 120)))
        if not said or chance.random() < 0.1:
            return chance.choice(NAMES), new, None
        model, prompt, answer = chance.choice(said)
        kind = chance.random()
        if kind < 0.2:
            return model, prompt, answer
        if kind < 0.4:
            prompt = prompt[: chance.randrange(len(prompt))]
        if len(prompt) > MOST_CHARACTERS:
            return model, new, None
        return model, f"{prompt}{answer} {new}", None

    def _ask(self, client: httpx.Client, model: str, prompt: str) -> str | None:
        body = {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0.0}
        began = time.monotonic()
        answer = client.post("/v1/completions", json={**body, "ignore_eos": True})
        with self._lock:
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            if answer.status_code != 200:
                self.problems.append(answer.text)
                return None
            self.answers += 1
        text: str = answer.json()["choices"][0]["text"]
        return text


class Killer:
    """Kills a worker now and then."""

    def __init__(self, gateway: Gateway, every_s: float) -> None:
        self.kills = 0
        self._gateway = gateway
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._kill)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _kill(self) -> None:
        chance = random.Random(1)
        killed_at = dict.fromkeys(NAMES, float("-inf"))
        with httpx.Client(base_url=self._gateway.url, timeout=120.0) as client:
            while not self._over.wait(chance.random() * 2 * self._every_s):
                now = time.monotonic()
                alive = [
                    (model["id"], model["worker"]["pid"])
                    for model in client.get("/admin/v1/status").json()["models"]
                    # Killed at each start it would never come to answer.
                    if model["state"] == "ready" and now - killed_at[model["id"]] > SAFE_S
                ]
                if alive:
                    name, pid = chance.choice(alive)
                    killed_at[name] = now
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        self.kills += 1


@pytest.mark.parametrize(
    ("seconds", "pause_s", "between_kills_s", "between_looks_s"),
    [
        pytest.param(8, 0.2, 2, 0.2, id="short", marks=pytest.mark.slow),
        pytest.param(3600, 2.0, 30, 2.0, id="long", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.timeout(9000)
def test_nothing_grows(
    seconds: float,
    pause_s: float,
    between_kills_s: float,
    between_looks_s: float,
    start_gateway: Callable[..., Gateway],
    tmp_path: Path,
    tell: Callable[..., None],
) -> None:
    folders = (
        shapes.DEMO,
        shapes.sliding_window(tmp_path / "window"),
        shapes.hybrid(tmp_path / "hybrid"),
    )
    models = tuple(f"{folder}={name}" for folder, name in zip(folders, NAMES, strict=True))
    probe = start_gateway(models=models[:1])
    budget = int(probe.load(NAMES[0])["worker"]["granted_bytes"] * 2.5)
    probe.stop()
    gateway = start_gateway(
        *("--memory-budget", str(budget), "--spare", "1"),
        models=models,
        config=CONFIG,
        environment=sitecustomize(tmp_path / "site", EAGER_SPARES),
    )
    for text in NAMES:
        # Its log stays open from now on, and threads that look into deaths have begun.
        gateway.load(text)
        os.kill(gateway.worker_pid(text), signal.SIGKILL)
        gateway.load(text)
        gateway.order("unload", text).raise_for_status()
    before = _at_rest(gateway, dict.__len__)
    talk = Talk(gateway, seconds, pause_s)
    watcher, killer = Watcher(gateway, between_looks_s), Killer(gateway, between_kills_s)
    with watcher, killer:
        talk.run()
    status = gateway.status()
    for text in NAMES:
        gateway.order("unload", text).raise_for_status()
    after = _at_rest(gateway, lambda found: all(found[name] <= before[name] for name in before))
    quarter = len(watcher.gateway_bytes) // 4
    first, last = (
        statistics.median(watcher.gateway_bytes[begin : begin + quarter])
        for begin in (quarter, len(watcher.gateway_bytes) - quarter)
    )
    cache = status["prompt_cache"]
    tell(
        answers=talk.answers,
        swaps=gateway.log.count("event=evict"),
        kills=killer.kills,
        longest_answer=f"{talk.longest_s:.1f} s",
        hit_rate=f"{cache['hit_rate']:.2f}",
        gateway=f"{first / 1e6:.1f} -> {last / 1e6:.1f} MB",
        gateways_descriptors=f"{max(watcher.gateway_descriptors)} at most",
        workers=f"{max(watcher.workers_bytes) / 1e6:.0f} of {budget / 1e6:.0f} MB",
        workers_descriptors=f"{max(watcher.worker_descriptors)} at most",
        prompts=f"{max(watcher.prompts_bytes) / 1e6:.1f} of {BOUND_BYTES / 1e6:.1f} MB",
        state_folder=f"{max(watcher.state_bytes) / 1e6:.1f} MB",
        **{name: f"{before[name]} -> {after[name]}" for name in before},
    )
    assert not talk.problems, talk.problems[:3]
    assert talk.answers > seconds / 4
    assert killer.kills > 0
    assert last - first < GROWTH_BYTES
    assert max(watcher.workers_bytes) <= budget
    assert 0 < max(watcher.prompts_bytes) <= BOUND_BYTES + COUNTING_BYTES


def _at_rest(gateway: Gateway, wanted: Callable[[dict[str, int]], object]) -> dict[str, int]:
    """What a gateway without workers and clients holds, once that is what is wanted: on a slow
    machine it often looks at itself, with a thread and a file, as it is looked at.
    """
    gateway.client.close()
    gateway.client = httpx.Client(base_url=gateway.url, timeout=120.0)
    process = psutil.Process(gateway.pid)
    # The spare one.
    eventually(lambda: len(process.children(recursive=True)) == 1, START_S)

    def reading() -> dict[str, int]:
        return {
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
            "sockets": len(list((gateway.state_dir / "run").iterdir())),
            "records": len(list((gateway.state_dir / "workers").iterdir())),
        }

    def settled() -> dict[str, int] | None:
        first = reading()
        time.sleep(1.5)
        return first if reading() == first and wanted(first) else None

    result: dict[str, int] = eventually(settled, START_S)
    return result


def _payload_bytes(folder: Path) -> int:
    """What is counted against the bound: files that are named by their keys."""
    return sum(_size(path) for path in folder.rglob("*") if len(path.name) == 32)


def _bytes(folder: Path) -> int:
    return sum(_size(path) for path in folder.rglob("*"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0
