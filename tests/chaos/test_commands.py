"""Kills of gateways, guards and servers of commands at random moments: nothing is left, nothing
hangs, and every stream ends with its end or with an error. And two commands within one budget.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from gateway.system.state_dir import lock_holder
from protocol.process_tree import MARK, marked
from tests.support.commands import all_gone, guarded, mlx_lm_server, serving, table
from tests.support.folders import short_folder
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.held import Sampler
from tests.support.streams import Stream, open_stream

CONFIG = "[workers]\nrestart_limit = 1000\n" + table("w", "--child", memory="200MB")
STREAMS = 4
TOKENS = 150


def _processes(gateway: Gateway, model: str) -> list[psutil.Process]:
    """The guard and all that it guards, also what its death has left."""
    pid = gateway.worker_pid(model)
    return [psutil.Process(pid), *guarded(gateway, model)]


def _open(gateway: Gateway, model: str) -> list[Stream]:
    return [open_stream(gateway, "hi", model_id=model, max_tokens=TOKENS) for _ in range(STREAMS)]


def _end(stream: Stream) -> str:
    stream.join()
    if stream.error is not None:
        return str(stream.error["code"])
    assert stream.done, f"no end, no error: {stream.text!r}"
    return "whole"


def kill_at_random(
    config: str,
    model: str,
    kills: int,
    chance: random.Random,
    open_streams: Callable[[Gateway, str], list[Stream]] = _open,
) -> Counter[str]:
    """Kill the gateway, the guard and one of the server's processes, in a random order, while
    streams run, so many times. Returns how often streams ended how.
    """
    ends: Counter[str] = Counter()
    seen: list[psutil.Process] = []
    marks = set()
    with short_folder() as folder, ExitStack() as stack:
        state_dir = Path(folder) / "state"

        def start() -> Gateway:
            return stack.enter_context(serving(config, "--state-dir", str(state_dir)))

        def all_whole() -> bool:
            return all(_end(stream) == "whole" for stream in open_streams(gateway, model))

        gateway = start()
        victims = (["gateway", "guard", "server"] * kills)[:kills]
        chance.shuffle(victims)
        for victim in victims:
            gateway.load(model)
            processes = _processes(gateway, model)
            seen += processes
            marks.add(processes[1].environ()[MARK])
            streams = open_streams(gateway, model)
            eventually(
                lambda streams=streams: all(stream.arrivals or stream.done for stream in streams),
                START_S,
            )
            time.sleep(chance.random() * 0.5)
            match victim:
                case "gateway":
                    gateway.process.kill()
                case "guard":
                    processes[0].kill()
                case "server":
                    with contextlib.suppress(psutil.NoSuchProcess):
                        chance.choice(processes[1:]).kill()
            ends.update(f"{victim}: {_end(stream)}" for stream in streams)
            if victim == "gateway":
                eventually(lambda processes=processes: all_gone(processes))
                gateway = start()
            # A request may still reach the socket of the server that is dying, and be told so.
            eventually(all_whole, START_S)
        gateway.order("unload", model).raise_for_status()
        stack.close()
        assert all_gone(seen)
        assert not [process for mark in marks for process in marked(mark)]
        assert not [path for path in state_dir.rglob("*") if path.is_socket()]
        assert lock_holder(state_dir) is None
    return ends


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [pytest.param(4, id="short"), pytest.param(50, id="long", marks=pytest.mark.chaos)],
)
@pytest.mark.timeout(1800)
def test_kills_leave_nothing_and_hang_nothing(
    kills: int, seed: int, tell: Callable[..., None]
) -> None:
    ends = kill_at_random(CONFIG, "w", kills, random.Random(seed))
    tell(kills=kills, ends=dict(ends))


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, id="short", marks=pytest.mark.slow),
        pytest.param(50, id="long", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.timeout(3600)
def test_kills_of_a_real_server_leave_nothing(
    kills: int, seed: int, tmp_path: Path, tell: Callable[..., None]
) -> None:
    config = mlx_lm_server(tmp_path) + "[workers]\nrestart_limit = 1000\n"
    ends = kill_at_random(config, "other", kills, random.Random(seed))
    tell(kills=kills, ends=dict(ends))


@pytest.mark.slow
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
    with serving(config) as gateway:
        turns = 0
        until = time.monotonic() + seconds
        with Sampler(gateway) as sampler:
            while time.monotonic() < until or turns < 4:
                name = "ab"[turns % 2]
                assert gateway.say("hi", name) == name
                turns += 1
        assert 200 << 20 < sampler.highest_bytes < budget_bytes, "never both"
        ended = gateway.chat("hi", "greedy", eat=600, hang=60)
        assert ended.status_code == 502
        assert gateway.say("hi", "a") == "a", "it takes nobody along for long"
        kinds = Counter(event["event"] for event in gateway.events())
        assert kinds["evict"] >= min(turns - 1, 50), "older events aren't kept"
        assert kinds["overgrown"] == 1
        refused = gateway.chat("hi", "large")
        assert refused.status_code == 507
        assert "3.0 GB" in refused.text, "with the numbers"
        for name in ("a", "b", "greedy"):
            gateway.order("unload", name)
        assert gateway.status()["memory"]["granted_bytes"] == 0, "all of it comes back"
    tell(turns=turns, most_mb=sampler.highest_bytes >> 20)
