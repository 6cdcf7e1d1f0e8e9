"""Estimates against what workers really hold, by their footprints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.memory.estimate.estimate import estimate, model_key
from gateway.memory.estimate.learned import Learned, Measured
from gateway.memory.footprint import Footprint, footprint
from tests.support import shapes
from tests.support.gateway import Gateway, eventually

CONTEXT = 1024
BUILT: dict[str, Callable[[Path], Path]] = {
    "demo": lambda _: shapes.DEMO,
    "sparse": lambda folder: shapes.sparse(folder, 64),
    "sliding": shapes.sliding_window,
    "state": shapes.state_space,
    "chunked": shapes.chunked_attention,
}


def _complete(gateway: Gateway, tokens: int, more: int) -> None:
    body = {
        "model": "m",
        "prompt": [5 + index % 200 for index in range(tokens)],
        "max_tokens": more,
        "ignore_eos": True,
    }
    gateway.client.post("/v1/completions", json=body).raise_for_status()


def _took(gateway: Gateway) -> tuple[Footprint, Footprint]:
    """Readings of a new worker: idle, and after a sequence that filled its context."""
    gateway.load("m")
    pid = gateway.worker_pid("m")
    eventually(lambda: gateway.model("m")["worker"]["footprint_bytes"])
    idle = footprint(pid)
    # A short prompt first: the chunks of the next one have grown to their length.
    _complete(gateway, 300, 2)
    _complete(gateway, CONTEXT - 40, 24)
    return idle, footprint(pid)


def _learned(gateway: Gateway, folder: Path) -> Measured:
    key = model_key(folder, CONTEXT, None)

    def full() -> Measured | None:
        measured = Learned(gateway.state_dir / "learned.json").get(key)
        return measured if measured is not None and measured.full_bytes is not None else None

    measured: Measured = eventually(full)
    return measured


@pytest.mark.parametrize(
    "name",
    [name if name == "state" else pytest.param(name, marks=pytest.mark.slow) for name in BUILT],
)
def test_it_is_within_15_percent_and_within_5_once_measured(
    name: str, tmp_path: Path, start_gateway: Callable[..., Any]
) -> None:
    folder = BUILT[name](tmp_path / name)
    gateway: Gateway = start_gateway(
        models=(), config=f'[models.m]\npath = "{folder}"\ncontext_tokens = {CONTEXT}\n'
    )
    before = estimate(folder, CONTEXT, None)
    idle, full = _took(gateway)
    assert full.peak_bytes is not None
    assert before.idle_bytes == pytest.approx(idle.current_bytes, rel=0.15)
    assert before.full_bytes == pytest.approx(full.peak_bytes, rel=0.15)

    measured = _learned(gateway, folder)
    gateway.order("unload", "m").raise_for_status()
    after = estimate(folder, CONTEXT, measured)
    idle, full = _took(gateway)
    assert after.idle_bytes == pytest.approx(idle.current_bytes, rel=0.05)
    assert after.full_bytes == pytest.approx(full.peak_bytes, rel=0.05)
