"""One gateway after another, under streams of several models: nothing fails, nothing is left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.gateway import START_S, Gateway, eventually
from tests.support.streams import Stream, open_stream

pytestmark = pytest.mark.slow

MODELS = ("a", "b", "c")
QUESTIONS = ("Tell me a story.", "What is Bulkhead?", "What can you do?", "Hello")
TOKENS = 120


def _open(gateway: Gateway, index: int) -> Stream:
    return open_stream(
        gateway,
        QUESTIONS[index % 4],
        MODELS[index % 3],
        max_tokens=TOKENS,
        ignore_eos=True,
        seed=index,
        temperature=1.1 if index % 2 else 0.0,
        stream_options={"include_usage": True},
    )


class Client(threading.Thread):
    """Asks the same again and again."""

    def __init__(self, gateway: Gateway, index: int, expected: tuple[object, ...]) -> None:
        super().__init__(daemon=True)
        self.answers = 0
        self.wrong: list[tuple[object, ...]] = []
        self.ending = threading.Event()
        self._gateway = gateway
        self._index = index
        self._expected = expected

    def run(self) -> None:
        while not self.ending.is_set():
            outcome = _open(self._gateway, self._index).join().outcome
            self.answers += 1
            if outcome != self._expected:
                self.wrong.append(outcome)


def _of(gateway: Gateway, state_dir: Path) -> set[int]:
    """Every process that knows the state folder, and what stands in for them."""
    found = {gateway.pid}
    for process in psutil.process_iter(["cmdline"]):
        if str(state_dir) in " ".join(process.info["cmdline"] or ()):
            found.add(process.pid)
    return found


@pytest.mark.parametrize(
    ("upgrades", "clients"),
    [
        pytest.param(2, 5, id="short"),
        pytest.param(50, 16, id="long", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.timeout(3600)
def test_nothing_fails_and_nothing_is_left(
    upgrades: int,
    clients: int,
    start_gateway: Callable[..., Gateway],
    tell: Callable[..., None],
) -> None:
    gateway = start_gateway(models=tuple(f"demo={model}" for model in MODELS))
    workers = {name: gateway.load(name)["worker"]["pid"] for name in MODELS}
    expected = [_open(gateway, index).join().outcome for index in range(clients)]

    def upgrade() -> dict[str, Any]:
        answer = gateway.client.post("/admin/v1/upgrade")
        assert answer.status_code == 200, answer.text
        replaced: dict[str, Any] = answer.json()
        return replaced

    def descriptors() -> dict[str, int]:
        serving = gateway.status()["pid"]
        counted = {name: psutil.Process(pid).num_fds() for name, pid in workers.items()}
        return counted | {"gateway": psutil.Process(serving).num_fds()}

    # From here on, whatever there is more of was left over.
    first = upgrade()["pid"]
    eventually(lambda: len(_of(gateway, gateway.state_dir)) == 5, START_S)
    before = descriptors()
    asking = [Client(gateway, index, pair) for index, pair in enumerate(expected)]
    for client in asking:
        client.start()
    pids, still = {first}, []
    for _ in range(upgrades):
        answer = upgrade()
        pids.add(answer["pid"])
        still.append(answer["still_s"])
    for client in asking:
        client.ending.set()
    for client in asking:
        client.join(600)
    assert [client.wrong for client in asking] == [[] for _ in asking]
    assert len(pids) == upgrades + 1
    assert {model: gateway.worker_pid(model) for model in MODELS} == workers
    # Who stands in, who serves, and the workers.
    eventually(lambda: len(_of(gateway, gateway.state_dir)) == 5, START_S)
    eventually(lambda: all(descriptors()[name] <= count for name, count in before.items()))
    assert len(list((gateway.state_dir / "run").iterdir())) == len(MODELS)
    assert len(list((gateway.state_dir / "workers").iterdir())) == len(MODELS)
    failures = [event for event in gateway.events() if event["event"] in ("exit", "refuse", "hang")]
    assert not failures
    tell(
        upgrades=upgrades,
        answers=sum(client.answers for client in asking),
        longest_stillness_s=max(still),
    )
