"""What a limit leaves to MLX, and when its buffers are given back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generation_stream

from protocol.life import Need
from worker.engines.room import CacheRoom, CacheSizes, ContextInForce, WorkerLimits
from worker.engines.sequence import EngineNeed
from worker.runtime.engine_loop import EngineLoop
from worker.runtime.engine_thread import EngineFigures, Limit
from worker.system.memory import released_memory, trim

MB = 10**6


@pytest.fixture(autouse=True)
def _own_limits() -> Iterator[None]:
    """MLX's are the process's."""
    memory, cache = mx.set_memory_limit(1 << 40), mx.set_cache_limit(1 << 40)
    mx.set_memory_limit(memory)
    yield
    mx.set_memory_limit(memory)
    mx.set_cache_limit(cache)


class _Thread:
    def __init__(self, *commands: Limit) -> None:
        self.figures = EngineFigures()
        self._commands = commands
        self.events: list[Any] = []

    def commands(self) -> tuple[Limit, ...]:
        return self._commands

    def emit(self, event: Any) -> None:
        self.events.append(event)


class _Engine:
    """Takes no part but to be told."""

    need = EngineNeed(1, 2, 1)
    short = False
    waiting = 0
    most_rows = 1

    def __init__(self) -> None:
        self.made_room = 0

    def make_room(self) -> None:
        self.made_room += 1

    def recompute_all(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("limit_mb", "beside_mb", "trimmed"),
    [(900, 100, True), (1000, 400, True), (1000, 100, False), (1300, 400, False)],
)
def test_buffers_go_back_when_less_is_left_to_mlx(
    limit_mb: int, beside_mb: int, *, trimmed: bool
) -> None:
    """Whether the limit fell, or what drivers hold beside MLX's account grew."""
    limits = WorkerLimits(CacheRoom(CacheSizes(1, 0, 1.5), working_bytes=64 * MB))
    limits.set_limit(1000 * MB, 100 * MB)
    assert limits.mlx_bytes == 900 * MB
    thread = _Thread(Limit(limit_bytes=limit_mb * MB, beside_bytes=beside_mb * MB))
    engine = _Engine()
    mx.clear_cache()
    scratch = mx.ones((4 * MB,), mx.float32)
    mx.eval(scratch)
    del scratch
    assert mx.get_cache_memory() > MB
    loop = EngineLoop(thread, engine, limits, ContextInForce(100))  # type: ignore[arg-type]
    loop._obey_all()
    assert (engine.made_room, mx.get_cache_memory() == 0) == (int(trimmed), trimmed)
    assert isinstance(thread.events[-1], Need)
    assert limits.mlx_bytes == (limit_mb - beside_mb) * MB
    assert limits.room.grown_bytes == (beside_mb - 100) * MB


def test_other_threads_run_while_limits_wait_for_what_is_computed() -> None:
    """A worker whose peers are gone waits for them there, and is to say so."""
    values = mx.random.normal((400, 400))
    mx.eval(values)
    ticks = 0
    over = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not over.wait(0.001):
            ticks += 1

    ticking = threading.Thread(target=tick)
    ticking.start()
    with mx.stream(generation_stream):
        product = values
        for _ in range(40):
            product = product @ values * 1e-2
        mx.async_eval(product)
    before = ticks
    trim()
    after = ticks
    over.set()
    ticking.join()
    # With the lock held it is one or two.
    assert after - before > 10


def test_a_failure_holds_no_memory() -> None:
    """Whoever prints the failure still has it, and with it the frames of its functions."""

    def fail() -> None:
        held = mx.ones((4 * MB,), mx.float32)
        mx.eval(held)
        try:
            raise KeyError("the first")
        except KeyError as error:
            raise RuntimeError("what came of it") from error

    mx.clear_cache()
    before_bytes = mx.get_active_memory()
    with pytest.raises(RuntimeError) as caught, released_memory():
        fail()
    assert caught.value.__traceback__ is not None
    assert mx.get_active_memory() - before_bytes < MB
    assert mx.get_cache_memory() == 0


def test_a_gpu_that_fails_once_more_is_no_reason_to_keep_buffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def synchronize(*_: Any) -> None:
        raise RuntimeError("[METAL] Command buffer execution failed: Ignored.")

    monkeypatch.setattr(mx, "synchronize", synchronize)
    with released_memory():
        mx.eval(mx.ones((4 * MB,), mx.float32))
    assert mx.get_cache_memory() == 0
