"""Ranks and gateways are killed at random moments. Short forms: tests/e2e/test_ranks.py."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.gateway import START_S, Gateway, eventually, gone
from tests.support.shapes import splittable
from tests.support.streams import Stream, open_stream

STREAMS = 3
ROUNDS = {2: 14, 4: 6}
GATEWAYS = 10
# What is left of a model whose gateway or rank is gone has this long.
GONE_S = 5.0


def _config(folder: Path, ranks: int) -> str:
    return f"""
[workers]
restart_limit = 1000
[models.many]
path = "{folder}"
local = {ranks}
context_tokens = 400
"""


def _pids(gateway: Gateway) -> list[int]:
    worker = gateway.model("many")["worker"]
    return [] if worker is None else [rank["pid"] for rank in worker["ranks"]]


def _open(gateway: Gateway) -> list[Stream]:
    return [
        open_stream(
            gateway,
            f"Tell me story {index}.",
            "many",
            max_tokens=60,
            ignore_eos=True,
            seed=index,
            temperature=0.0 if index % 2 else 1.1,
        )
        for index in range(STREAMS)
    ]


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ranks", list(ROUNDS))
def test_no_stream_changes_whichever_rank_is_killed(
    ranks: int, tmp_path: Path, start_gateway: Callable[..., Gateway]
) -> None:
    gateway = start_gateway(
        models=(), config=_config(splittable(tmp_path / "model", "llama"), ranks)
    )
    gateway.load("many")
    chance = random.Random(ranks)
    began = time.monotonic()
    undisturbed = [stream.join().outcome for stream in _open(gateway)]
    lasts_s = time.monotonic() - began
    for _ in range(ROUNDS[ranks]):
        streams = _open(gateway)
        eventually(lambda streams=streams: any(stream.text for stream in streams), START_S)
        time.sleep(chance.random() * lasts_s / 2)
        pids = eventually(lambda: _pids(gateway), START_S)
        os.kill(chance.choice(pids), signal.SIGKILL)
        eventually(lambda pids=pids: all(map(gone, pids)), within_s=GONE_S)
        assert [stream.join().outcome for stream in streams] == undisturbed


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_no_rank_outlives_a_killed_gateway(tmp_path: Path) -> None:
    folder = splittable(tmp_path / "model", "llama")
    chance = random.Random(0)
    for _ in range(GATEWAYS):
        gateway = Gateway(models=(), config=_config(folder, 2))
        gateway.load("many")
        pids = eventually(lambda gateway=gateway: _pids(gateway), START_S)
        if chance.random() < 0.7:
            eventually(lambda gateway=gateway: gateway.model("many")["state"] == "ready", START_S)
            streams = _open(gateway)
            eventually(lambda streams=streams: any(stream.text for stream in streams), START_S)
            pids = _pids(gateway)
        time.sleep(chance.random())
        gateway.process.kill()
        eventually(lambda pids=pids: all(map(gone, pids)), within_s=GONE_S)
        assert gateway.stop() == -signal.SIGKILL
