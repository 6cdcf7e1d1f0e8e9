"""Kills of gateways, guards and servers of commands at random moments: nothing is left, nothing
hangs, and every stream ends with its end or with an error. And two commands within one budget.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

import psutil
import pytest

from protocol.process_tree import MARK
from tests.support.commands import all_gone, guarded, serving, table
from tests.support.gateway import Gateway, eventually
from tests.support.streams import Stream, open_stream

CONFIG = "[workers]\nrestart_limit = 1000\n" + table("w", "--child", memory="200MB")
STREAMS = 4
TOKENS = 60


def _processes(gateway: Gateway) -> list[psutil.Process]:
    """The guard and all that it guards, also what its death has left."""
    pid = gateway.worker_pid("w")
    return [psutil.Process(pid), *guarded(gateway, "w")]


def _open(gateway: Gateway) -> list[Stream]:
    return [open_stream(gateway, "hi", model_id="w", max_tokens=TOKENS) for _ in range(STREAMS)]


def _ended(stream: Stream) -> str:
    stream.join()
    if stream.error is not None:
        return str(stream.error["code"])
    assert stream.done, f"no end, no error: {stream.text!r}"
    assert stream.text.split() == [str(each) for each in range(TOKENS)]
    return "whole"


@pytest.mark.parametrize(
    "kills",
    [pytest.param(4, id="short"), pytest.param(50, id="long", marks=pytest.mark.chaos)],
)
@pytest.mark.timeout(1800)
def test_kills_leave_nothing_and_hang_nothing(kills: int, tell: Callable[..., None]) -> None:
    chance = random.Random(kills)
    ends: Counter[str] = Counter()
    seen: list[psutil.Process] = []
    victims = ["guard", "server"] * (kills // 2)
    chance.shuffle(victims)
    with serving(CONFIG) as gateway:
        for victim in victims:
            gateway.load("w")
            processes = _processes(gateway)
            seen += processes
            streams = _open(gateway)
            eventually(lambda streams=streams: all(each.text for each in streams))
            time.sleep(chance.random() * 0.5)
            os.kill(processes[0 if victim == "guard" else 1].pid, signal.SIGKILL)
            ends.update(map(_ended, streams))
            # A request may still reach the socket of the server that is dying, and be told so.
            eventually(lambda: gateway.chat("hi", "w").status_code == 200)
            eventually(lambda processes=processes: all_gone(processes))
    assert all_gone(seen)
    for _ in range(max(1, kills // 10)):
        with serving(CONFIG) as gateway:
            gateway.load("w")
            processes = _processes(gateway)
            streams = _open(gateway)
            time.sleep(chance.random())
            gateway.process.kill()
            for each in streams:
                each.join()
            eventually(lambda processes=processes: all_gone(processes))
    assert set(ends) <= {"whole", "bad_gateway"}
    tell(kills=kills, ends=dict(ends))


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(15, id="short"), pytest.param(120, id="long", marks=pytest.mark.chaos)],
)
@pytest.mark.timeout(600)
def test_two_commands_take_turns_within_a_budget_for_one(
    seconds: int, tell: Callable[..., None]
) -> None:
    budget_bytes = 400_000_000
    config = f"[memory]\nbudget = {budget_bytes}\n[queue]\nmax_wait_s = 2\n"
    config += table("a", "--eat", "200", memory="260MB")
    config += table("b", "--eat", "200", memory="260MB")
    config += table("greedy", memory="50MB") + table("large", memory="3GB")
    most_bytes = 0
    over = threading.Event()

    def watch(gateway: Gateway) -> None:
        nonlocal most_bytes
        while not over.is_set():
            most_bytes = max(most_bytes, _held_bytes(gateway.pid))
            time.sleep(0.05)

    with serving(config) as gateway:
        watcher = threading.Thread(target=watch, args=(gateway,))
        watcher.start()
        turns = 0
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until or turns < 4:
                name = "ab"[turns % 2]
                assert gateway.say("hi", name) == name
                turns += 1
        finally:
            over.set()
            watcher.join()
        assert most_bytes < budget_bytes, "never both"
        ended = gateway.chat("hi", "greedy", eat=600, hang=60)
        assert ended.status_code == 502
        assert gateway.say("hi", "a") == "a", "it takes nobody along for long"
        kinds = Counter(each["event"] for each in gateway.events())
        assert kinds["evict"] >= turns - 1
        assert kinds["overgrown"] == 1
        refused = gateway.chat("hi", "large")
        assert refused.status_code == 507
        assert "3.0 GB" in refused.text, "with the numbers"
        for name in ("a", "b", "greedy"):
            gateway.order("unload", name)
        assert gateway.status()["memory"]["granted_bytes"] == 0, "all of it comes back"
    tell(turns=turns, most_mb=most_bytes >> 20)


def _held_bytes(gateway_pid: int) -> int:
    """The resident bytes of all servers below a gateway."""
    held = 0
    for each in psutil.Process(gateway_pid).children(recursive=True):
        try:
            if MARK in each.environ():
                held += each.memory_info().rss
        except (psutil.Error, OSError):
            continue
    return held
