"""Estimates against what workers really hold, by their footprints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.memory.estimate import model_key
from gateway.memory.fitting import Learned, whole
from gateway.memory.weights import LoadOptions
from gateway.system.memory import footprint
from gateway.system.memory_reading import Footprint
from tests.support import shapes
from tests.support.gateway import Gateway, eventually

pytestmark = pytest.mark.slow

CONTEXT = 1024
BUILT: dict[str, Callable[[Path], Path]] = {
    "demo": lambda _: shapes.DEMO,
    "sparse": lambda folder: shapes.sparse(folder, 400),
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


@pytest.mark.parametrize(
    "name",
    [name if name == "state" else pytest.param(name) for name in BUILT],
)
def test_it_is_enough_and_a_load_is_within_5_percent_once_measured(
    name: str, tmp_path: Path, start_gateway: Callable[..., Any]
) -> None:
    folder = BUILT[name](tmp_path / name)
    gateway: Gateway = start_gateway(
        models=(), config=f'[models.m]\npath = "{folder}"\ncontext_tokens = {CONTEXT}\n'
    )
    path = gateway.state_dir / "learned.json"
    _, before = whole(folder, CONTEXT, CONTEXT, None, Learned(path), LoadOptions())
    idle, full = _took(gateway)
    assert full.peak_bytes is not None
    assert before.fixed_bytes == pytest.approx(idle.current_bytes, rel=0.15)
    # More may be counted on than is taken, as caches may be merged at any moment.
    assert full.peak_bytes <= before.whole_bytes
    assert before.whole_bytes == pytest.approx(full.peak_bytes, rel=0.25)

    key = model_key(folder, None)
    eventually(lambda: Learned(path).fixed_bytes(key))
    _, after = whole(folder, CONTEXT, CONTEXT, None, Learned(path), LoadOptions())
    gateway.order("unload", "m").raise_for_status()
    idle, full = _took(gateway)
    assert after.fixed_bytes == pytest.approx(idle.current_bytes, rel=0.05)
