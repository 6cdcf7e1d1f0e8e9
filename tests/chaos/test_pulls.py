"""Pulls that are killed, reset and stalled again and again end with the right bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pulls import survive


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(5))
def test_many_kills_resets_and_stalls(tmp_path: Path, seed: int) -> None:
    survive(tmp_path, kills=20, faults=40, seed=seed, shard_bytes=3_000_000)
