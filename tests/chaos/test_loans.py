"""Models under load that share what is free: nobody stands still, and the budget holds."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import indent

import httpx
import pytest

from gateway.memory.admission_round import RECALL_S
from tests.support import faults, shapes
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.held import Sampler

pytestmark = pytest.mark.slow

CONFIG = "[memory]\nordinary_tokens = 256\n[queue]\nmax_wait_s = 10.0\n"
PROMPT = [7] * 20


class Load:
    """Clients of one model, each with one request after another until told to stop."""

    def __init__(self, gateway: Gateway, model_id: str, clients: int, tokens: int) -> None:
        self.ends: list[float] = []
        self.problems: list[str] = []
        self.texts: set[str] = set()
        self._url = gateway.url
        self._body = {
            "model": model_id,
            "prompt": PROMPT,
            "max_tokens": tokens,
            "temperature": 0.0,
            "ignore_eos": True,
        }
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in self._threads)

    def ended_between(self, begin: float, end: float) -> int:
        return sum(begin <= number < end for number in self.ends)

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, timeout=300.0) as client:
            while not self._over.is_set():
                answer = client.post("/v1/completions", json=self._body)
                self.ends.append(time.monotonic())
                if answer.status_code != 200:
                    self.problems.append(answer.text)
                else:
                    self.texts.add(answer.json()["choices"][0]["text"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shapes.wide_cache(tmp_path_factory.mktemp("models") / "wide")


@pytest.fixture(scope="module")
def floor(folder: Path) -> int:
    """Of one of these models, in bytes."""
    probe = Gateway(models=(f"{folder}=a",), config=CONFIG)
    bytes_: int = probe.load("a")["floor_bytes"]
    assert probe.stop() == 0, probe.log
    return bytes_


@pytest.mark.parametrize(
    ("clients", "tokens", "seconds"),
    [
        pytest.param(8, 40, 8, id="short"),
        pytest.param(16, 300, 60, id="long", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.timeout(600)
def test_two_under_load_where_one_and_a_half_fit(
    clients: int,
    tokens: int,
    seconds: float,
    start_gateway: Callable[..., Gateway],
    folder: Path,
    floor: int,
    tell: Callable[..., None],
) -> None:
    # What one of them could use: two layers, whose caches exist three times while they grow.
    steps = -(-(len(PROMPT) + tokens + 2) // 256)
    rows = clients * steps * 256 * 32768 * 3
    budget = 3 * floor + int(1.5 * rows)
    gateway = start_gateway(
        *("--memory-budget", str(budget)),
        models=(f"{folder}=a", f"{folder}=b", f"{folder}=c"),
        config=CONFIG,
    )
    gateway.load("a")
    gateway.load("b")
    with Sampler(gateway) as sampler:
        began = time.monotonic()
        first, second = Load(gateway, "a", clients, tokens), Load(gateway, "b", clients, tokens)
        time.sleep(seconds / 2)
        eventually(lambda: first.ends and second.ends, START_S)
        loading = time.monotonic()
        gateway.load("c")
        loaded_s = time.monotonic() - loading
        waited_s = _waited_s(gateway, "c")
        time.sleep(seconds / 2)
        eventually(lambda: min(first.ends[-1], second.ends[-1]) > loading, START_S)
        ended = time.monotonic()
        second.stop()
        freed = time.monotonic()
        eventually(lambda: _has_all(gateway, "a"))
        moved_s = time.monotonic() - freed
        first.stop()
        status = gateway.status()
    assert not first.problems + second.problems
    assert len(first.texts | second.texts) == 1, "the same model, and the same prompt"
    for load in (first, second):
        assert load.ended_between(began, loading) > 0
        assert load.ended_between(loading, ended) > 0
    # A short run held 530 MB of 614 MB.
    assert sampler.highest_bytes <= budget
    assert not [event for event in gateway.events("evict") if event["model"] in ("a", "b")]
    assert [model["restarts"] for model in status["models"]] == [0, 0, 0]
    tell(
        answers=len(first.ends) + len(second.ends),
        recalls=len(gateway.events("recall")),
        highest_sum=f"{sampler.highest_bytes / 1e6:.0f} of {budget / 1e6:.0f} MB",
        third_waited_for_memory=f"{waited_s:.1f} s",
        third_loaded_in=f"{loaded_s:.1f} s",
        moved_in=f"{moved_s:.1f} s",
    )


def _waited_s(gateway: Gateway, model_id: str) -> float:
    """From when a model asked for memory until it had it."""
    states = [event for event in gateway.events("state") if event["model"] == model_id]
    at = {state["after"]: state["at"] for state in states}
    return at["starting"] - at["waiting"]


def _has_all(gateway: Gateway, model_id: str) -> bool:
    model = gateway.model(model_id)
    limit = model["floor_bytes"] + model["lent_bytes"]
    return bool(limit >= model["wanted_bytes"])


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(4, id="short"), pytest.param(300, id="long", marks=pytest.mark.chaos)],
)
@pytest.mark.timeout(900)
def test_texts_are_exact_through_kills_recalls_and_evictions(
    seconds: float,
    start_gateway: Callable[..., Gateway],
    folder: Path,
    floor: int,
    tell: Callable[..., None],
) -> None:
    # Two of the three fit, and little beside them: who waits has another one evicted in its turn.
    budget = int(2.2 * floor) + 256 * 32768 * 3
    gateway = start_gateway(
        *("--memory-budget", str(budget)),
        models=tuple(f"{folder}={name}" for name in "abc"),
        config=CONFIG + "[workers]\nrestart_limit = 1000\n",
    )
    chance = random.Random(5)
    with Sampler(gateway) as sampler:
        loads = [Load(gateway, name, 3, 60) for name in "abc"]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(chance.uniform(1.5, 4.0))
            name = chance.choice("abc")
            if gateway.model(name)["state"] == "ready":
                gateway.order(chance.choice(("kill", "restart", "unload")), name, wait=False)
        for load in loads:
            load.stop()
    assert not [problem for load in loads for problem in load.problems][:3]
    assert len(set().union(*(load.texts for load in loads))) == 1
    # Short runs held 188 to 214 MB of 254 MB.
    assert sampler.highest_bytes <= budget
    tell(
        answers=sum(len(load.ends) for load in loads),
        recalls=len(gateway.events("recall")),
        evictions=len(gateway.events("evict")),
        highest_sum=f"{sampler.highest_bytes / 1e6:.0f} of {budget / 1e6:.0f} MB",
    )


FAT_BYTES = 150_000_000
# What a driver, a pool or a library takes of a process beside MLX's account.
_TAKE = """
import mmap
def take(bytes_):
    more = mmap.mmap(-1, bytes_)
    more[::4096] = b"x" * len(more[::4096])
    held.append(more)
held = []
"""
FAT_WORKERS = {
    "by a constant": faults.after_import(
        "worker.load.loading",
        f"""
        {indent(_TAKE, " " * 8).strip()}
        original = module.load
        def load(*arguments, **options):
            take({FAT_BYTES})
            return original(*arguments, **options)
        module.load = load
        """,
    ),
    "by use": faults.in_engine_step(
        f"""
                {indent(_TAKE, " " * 16).strip()}
                held = module.__dict__.setdefault("held", held)
                if len(held) < 150:
                    take({FAT_BYTES} // 150)
        """,
    ),
    "never giving back": faults.after_import(
        "worker.system.memory",
        """
        module.trim = lambda: None
        module.mx.set_cache_limit = lambda _: 0
        """,
    ),
}


def _budget(floor: int, clients: int, tokens: int) -> int:
    """Of two models one can have what it wants, and the other half of that."""
    steps = -(-(len(PROMPT) + tokens + 2) // 256)
    return 2 * floor + int(1.5 * clients * steps * 256 * 32768 * 3)


@pytest.mark.parametrize("kind", FAT_WORKERS)
@pytest.mark.parametrize(
    ("clients", "tokens", "seconds"),
    [
        pytest.param(8, 20, 1, id="short"),
        pytest.param(16, 200, 60, id="long", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.timeout(600)
def test_workers_that_hold_more_than_they_are_told(
    clients: int,
    tokens: int,
    seconds: float,
    kind: str,
    start_gateway: Callable[..., Gateway],
    folder: Path,
    floor: int,
    tmp_path: Path,
    tell: Callable[..., None],
) -> None:
    """Each in turn has all that there is, and the other what it was called back from it."""
    budget = _budget(floor, clients, tokens) + FAT_BYTES
    gateway = start_gateway(
        *("--memory-budget", str(budget)),
        models=(f"{folder}=a", f"{folder}=b"),
        config=CONFIG,
        environment=faults.sitecustomize(tmp_path / "site", FAT_WORKERS[kind]),
    )
    gateway.load("a")
    gateway.load("b")
    texts: set[str] = set()
    answers, longest_s = 0, 0.0
    with Sampler(gateway) as sampler:
        until = time.monotonic() + seconds
        while not texts or time.monotonic() < until:
            for names in ("a", "b", "ab"):
                loads = [Load(gateway, name, clients, tokens) for name in names]
                begun = time.monotonic()
                eventually(lambda loads=loads: all(load.ends for load in loads), START_S)
                for load in loads:
                    load.stop()
                    longest_s = max(longest_s, load.ends[0] - begun)
                    answers += len(load.ends)
                    texts |= load.texts
                    assert not load.problems
        status = gateway.status()
    assert len(texts) == 1, "the same model, and the same prompt"
    # Short runs held 383 to 696 MB of 960 MB.
    assert sampler.highest_bytes <= budget + 2 * FAT_BYTES
    assert not gateway.events("hang")
    assert [model["restarts"] for model in status["models"]] == [0, 0]
    tell(
        answers=answers,
        recalls=len(gateway.events("recall")),
        replaced=len(gateway.events("overgrown")),
        highest_sum=f"{sampler.highest_bytes / 1e6:.0f} of {budget / 1e6:.0f} MB",
        longest_first_answer=f"{longest_s:.1f} s",
    )


@pytest.mark.timeout(300)
def test_unrecallable_memory_is_known_by_the_workers_answer(
    start_gateway: Callable[..., Gateway],
    folder: Path,
    floor: int,
    tmp_path: Path,
) -> None:
    """Who waits for its memory waits for no deadline: the worker goes."""
    gateway = start_gateway(
        *("--memory-budget", str(2 * floor + FAT_BYTES // 2)),
        models=(f"{folder}=a", f"{folder}=b"),
        config=CONFIG,
        environment=faults.sitecustomize(tmp_path / "site", FAT_WORKERS["by use"]),
    )
    body = {"model": "a", "prompt": PROMPT, "max_tokens": 200, "ignore_eos": True}
    gateway.client.post("/v1/completions", json=body).raise_for_status()
    eventually(lambda: gateway.model("a")["worker"]["footprint_bytes"] > floor + FAT_BYTES * 0.8)
    gateway.load("b")
    (evicted,) = gateway.events("evict")
    assert evicted["for_model"] == "b"
    # Nothing is called back if the gateway knows already that the worker holds more than its limit.
    asked = next(event for event in gateway.events("state") if event["model"] == "b")
    assert evicted["at"] - asked["at"] < RECALL_S
