"""SIGKILL at a random moment of the stream: nobody's answer changes."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.gateway import START_S, Gateway, eventually
from tests.support.streams import Stream, open_stream

QUESTIONS = ("Tell me a story.", "What is Bulkhead?", "What can you do?", "Hello")
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.1, "top_p": 0.95},
}
TOKENS = 160
CONFIG = "[workers]\nrestart_limit = 1000\n"
MIXES = tuple(itertools.product((1, 4, 16), SAMPLINGS))
SHORT = ((1, "greedy"), (6, "seeded"))


def _open(gateway: Gateway, count: int, sampling: str) -> list[Stream]:
    return [
        open_stream(
            gateway,
            QUESTIONS[index % len(QUESTIONS)],
            max_tokens=TOKENS,
            ignore_eos=True,
            seed=index,
            stream_options={"include_usage": True},
            **SAMPLINGS[sampling],
        )
        for index in range(count)
    ]


@pytest.mark.parametrize(
    ("rounds", "mixes"),
    [
        pytest.param(1, SHORT, id="short"),
        pytest.param(17, MIXES, id="long", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.timeout(1800)
def test_no_stream_changes(
    rounds: int,
    mixes: tuple[tuple[int, str], ...],
    start_gateway: Callable[..., Gateway],
    tell: Callable[..., None],
) -> None:
    """Each round kills once for every mix of stream count and sampling."""
    gateway = start_gateway("--spare", "1", config=CONFIG)
    gateway.load()
    chance = random.Random(rounds)
    undisturbed, durations_s = {}, {}
    for count, sampling in mixes:
        began = time.monotonic()
        undisturbed[count, sampling] = [
            stream.join().outcome for stream in _open(gateway, count, sampling)
        ]
        durations_s[count, sampling] = time.monotonic() - began
    kills = cut = begun = compared = 0
    longest_pause_s = 0.0
    for mix in mixes * rounds:
        unfinished: list[Stream] = []
        while not unfinished:
            opened = _open(gateway, *mix)
            eventually(lambda opened=opened: any(item.text for item in opened), START_S)
            time.sleep(chance.random() * durations_s[mix])
            unfinished = [stream for stream in opened if stream.finish_reason is None]
            if unfinished:
                begun += sum(bool(stream.text) for stream in unfinished)
                killed = gateway.worker_pid()
                os.kill(killed, signal.SIGKILL)
            assert [stream.join().outcome for stream in opened] == undisturbed[mix], mix
        kills += 1
        compared += len(opened)
        cut += len(unfinished)
        longest_pause_s = max(longest_pause_s, *(max(stream.gaps_s) for stream in unfinished))
        # Answers that were at their end are over before the gateway knows of the death: the next
        # ones would still go to that worker, and have two deaths to answer for.
        eventually(lambda pid=killed: any(end["pid"] == pid for end in gateway.events("exit")))
    tell(
        kills=kills,
        streams_cut=cut,
        in_mid_answer=begun,
        answers_compared=compared,
        longest_pause=f"{longest_pause_s:.1f} s",
    )
