"""A file that hangs, no descriptors, no threads, at random moments: other streams go on."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.faults import hanging_files, hangs, sitecustomize
from tests.support.gateway import START_S, Gateway, chat_body, eventually
from tests.support.limits import limited_user, no_descriptors, no_new_threads
from tests.support.shapes import DEMO
from tests.support.streams import Stream, open_stream

STORY = "Tell me a story."
TOKENS = 150
# What the model beside may be told while it can't be started, or hangs.
EXPECTED_STATUSES = {200, 503}
SHORTEST_S = 0.5


@contextlib.contextmanager
def _hanging_file(folder: Path) -> Iterator[None]:
    """The weights of the model beside don't answer."""
    mark = hangs(folder / "model.safetensors")
    mark.touch()
    try:
        yield
    finally:
        mark.unlink()


class Beside:
    """Orders for the model beside, one after the other, until it is told to stop."""

    def __init__(self, gateway: Gateway, chance: random.Random) -> None:
        self.problems: list[str] = []
        self.orders = 0
        self._chance = chance
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._act)
        # Connected before there is a shortage.
        self._client = httpx.Client(base_url=gateway.url, timeout=90.0)
        self._client.get("/livez").raise_for_status()

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "an order never ended"
        self._client.close()

    def _act(self) -> None:
        while not self._ending.wait(self._chance.random() * 0.3):
            verb, force = self._chance.choice(
                (("load", False), ("unload", True), ("kill", True), ("chat", False))
            )
            path, body = f"/admin/v1/models/beside/{verb}", {"force": force}
            if verb == "chat":
                path = "/v1/chat/completions"
                body = chat_body(STORY, "beside", max_tokens=20)
            try:
                answer = self._client.post(path, json=body)
            except httpx.HTTPError as error:
                self.problems.append(f"{verb}: {error!r}")
                return
            self.orders += 1
            if answer.status_code not in EXPECTED_STATUSES:
                self.problems.append(f"{verb}: {answer.status_code} {answer.text}")


def _stream(gateway: Gateway) -> Stream:
    return open_stream(
        gateway, STORY, max_tokens=TOKENS, ignore_eos=True, stream_options={"include_usage": True}
    )


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(1, id="short", marks=pytest.mark.slow),
        pytest.param(8, id="long", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.timeout(900)
def test_streams_go_on_beside(
    rounds: int,
    start_gateway: Callable[..., Gateway],
    tmp_path: Path,
    tell: Callable[..., None],
    seed: int,
) -> None:
    chance = random.Random(seed)
    folder = tmp_path / "beside"
    shutil.copytree(DEMO, folder)
    gateway = start_gateway(
        models=("demo", str(folder)),
        prefix=limited_user(),
        environment=sitecustomize(tmp_path / "site", hanging_files()),
    )
    gateway.load()
    undisturbed = _stream(gateway).join().outcome
    pid = gateway.worker_pid()
    compared = orders = 0
    for _ in range(rounds):
        for name in ("a file hangs", "no descriptors", "no threads"):
            beside = Beside(gateway, chance)
            streams = [_stream(gateway) for _ in range(2)]
            eventually(lambda streams=streams: all(stream.arrivals for stream in streams), START_S)
            time.sleep(chance.random() / 2)
            with contextlib.ExitStack() as stack:
                if name == "a file hangs":
                    stack.enter_context(beside)
                    stack.enter_context(_hanging_file(folder))
                elif name == "no threads":
                    stack.enter_context(beside)
                    stack.enter_context(no_new_threads(gateway.pid))
                else:
                    # Libzmq ends the process if a worker connects and no descriptor is left, so
                    # none may be on its way when these run out.
                    stack.enter_context(no_descriptors(gateway.pid))
                    stack.enter_context(beside)
                time.sleep(SHORTEST_S + chance.random() * 1.5)
            assert [stream.join().outcome for stream in streams] == [undisturbed] * 2, name
            assert not beside.problems, beside.problems
            assert beside.orders
            compared += len(streams)
            orders += beside.orders
            # Nothing of it has stayed: it is measured and loaded as ever.
            gateway.order("unload", "beside", force=True).raise_for_status()
            eventually(lambda: gateway.order("load", "beside").status_code == 200, START_S)
            assert _stream(gateway).join().outcome == undisturbed
    assert gateway.worker_pid() == pid, "the healthy worker is the same"
    eventually(lambda: gateway.status()["memory"]["footprint_bytes"], START_S)
    children = psutil.Process(gateway.pid).children()
    assert len(children) == 2
    assert psutil.STATUS_ZOMBIE not in {child.status() for child in children}
    tell(rounds=rounds, streams_compared=compared, orders_beside=orders)
