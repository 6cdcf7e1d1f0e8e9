"""The environment of workers."""

from __future__ import annotations

import pytest

from gateway.memory.back_end import BackEnd
from gateway.process import program


@pytest.mark.parametrize(
    ("back_end", "gives_back"),
    [(BackEnd.CPU, True), (BackEnd.METAL, True), (BackEnd.CUDA, False)],
)
def test_large_buffers_are_given_back_at_once_but_where_weights_pass_through_them(
    back_end: BackEnd, gives_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "back_end", lambda: back_end)
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    environment = program.worker_environment()
    assert ("MALLOC_MMAP_THRESHOLD_" in environment) is gives_back
    assert environment["HF_HUB_OFFLINE"] == "1"
