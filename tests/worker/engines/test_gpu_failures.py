"""Failures of the GPU, as MLX raises them on a Mac: what runs goes on, or the process ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from protocol.prompt_store.store import PromptStore
from tests.support import shapes
from tests.worker.vectors.test_engine import TEXTS, Bench
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.pace import PrefillPace
from worker.engines.room import CacheRoom, measure
from worker.engines.sequence import Engine, Sequence
from worker.engines.sequential import SequentialEngine
from worker.load.loading import LoadedModel, load
from worker.mlx_lm.generator import Generator
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.path import Paths
from worker.sampling.settings import RowSampling
from worker.system.errors import may_pass, passing_kind
from worker.system.gpu_recovery import GpuRecovery
from worker.vectors.jobs import VectorJob

# MLX 0.32's words around those of macOS.
TIMEOUT = "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)"
INTERACTIVITY = (
    "Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)"
)
VICTIM = (
    "Discarded (victim of GPU error/recovery) "
    "(00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)"
)
IGNORED = (
    "Ignored (for causing prior/excessive GPU errors) "
    "(00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)"
)
FAULT = "Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)"
PASSING = (TIMEOUT, INTERACTIVITY, VICTIM)

PROMPT = [5 + index * 7 % 200 for index in range(300)]


def failure(what: str) -> RuntimeError:
    return RuntimeError(f"[METAL] Command buffer execution failed: {what}.")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load(str(shapes.DEMO), lambda _done, _total: None, lambda: False)


@contextmanager
def _failing(number: int, what: str) -> Iterator[None]:
    """MLX fails in one of its evaluations from now on, which comes."""
    calls: list[int] = []

    def noted(original: Callable[..., Any]) -> Callable[..., Any]:
        def evaluate(*arguments: Any) -> Any:
            calls.append(len(calls))
            if len(calls) == number:
                raise failure(what)
            return original(*arguments)

        return evaluate

    with pytest.MonkeyPatch.context() as patch:
        for name in ("eval", "async_eval"):
            patch.setattr(mx, name, noted(getattr(mx, name)))
        yield
    assert len(calls) >= number


def _engine(kind: str, model: LoadedModel) -> tuple[Engine, PromptCache]:
    caches = Caches(model.model)
    cutter = Cutter(caches.run, caches.make)
    cache = PromptCache(cutter, None)
    room = CacheRoom(measure(caches.run, caches.make))
    if kind == "batched":
        return BatchedEngine(model.model, (), 8, room, prompt_cache=cache), cache
    return SequentialEngine(model.model, (), room, caches, cache), cache


def _sequences(cache: PromptCache, store: PromptStore) -> list[Sequence]:
    paths = Paths(b"", store, needs_snapshots=cache.needs_snapshots)
    asked = [(PROMPT[:200], None), (PROMPT, RowSampling(1, 0.7)), (PROMPT[:3], RowSampling(2, 1.5))]
    return [
        Sequence(
            str(index), ids, 12, sampling, ignore_eos=True, path=paths.find(ids, ""), logprobs=index
        )
        for index, (ids, sampling) in enumerate(asked)
    ]


def _run(engine: Engine, sequences: list[Sequence]) -> dict[str, list[int]]:
    """As turns of a worker do."""
    recovery = GpuRecovery(engine.recompute_all)
    made: dict[str, list[int]] = {sequence.request_id: [] for sequence in sequences}
    for sequence in sequences:
        engine.add(sequence)
    while engine.active + engine.waiting:
        try:
            for token in engine.step():
                assert token.score is not None
                made[token.request_id].append(token.token_id)
            engine.store_blocks()
        except RuntimeError as error:
            recovery.recover(error)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["batched", "sequential"])
@pytest.mark.parametrize(
    "places",
    [
        pytest.param(range(1, 31, 7), id="short"),
        pytest.param(range(1, 31), id="long", marks=pytest.mark.slow),
    ],
)
def test_no_token_is_lost_or_doubled_wherever_the_gpu_gives_up(
    places: range, kind: str, model: LoadedModel, tmp_path: Path
) -> None:
    store = PromptStore(tmp_path, 1 << 30, 1 << 30)
    engine, cache = _engine(kind, model)
    expected = _run(engine, _sequences(cache, store))
    for place in places:
        engine, cache = _engine(kind, model)
        with _failing(place, PASSING[place % 3]):
            assert _run(engine, _sequences(cache, store)) == expected, place


@pytest.mark.parametrize("kind", ["batched", "sequential"])
def test_chunks_are_a_quarter_and_no_cached_block_is_used(kind: str, model: LoadedModel) -> None:
    engine, cache = _engine(kind, model)
    engine.add(Sequence("r", PROMPT, 4, None, ignore_eos=True))
    engine.step()
    pace: PrefillPace = engine._pace  # type: ignore[attr-defined]
    pace.observe(4096, 0.01)
    before = pace.chunk(1, decoding=False)
    assert before >= 256
    GpuRecovery(engine.recompute_all).recover(failure(TIMEOUT))
    assert (engine.active, engine.waiting, cache.bytes_) == (0, 1, 0)
    pace.observe(4096, 0.01)
    assert pace.chunk(1, decoding=False) == before // 4


def test_a_shortened_chunk_grows_slowly_again() -> None:
    pace = PrefillPace(2048, alone_s=1.0)
    for _ in range(8):
        pace.observe(2048, 0.01)
        pace.chunk(1, decoding=False)
    for most in (512, 128, 32, 16, 16):
        pace.shorten()
        assert pace.chunk(1, decoding=False) == most
    chunks = []
    for _ in range(64 * 8):
        pace.observe(2048, 0.01)
        chunks.append(pace.chunk(1, decoding=False))
    assert chunks[:63] == [16] * 63
    assert chunks == sorted(chunks)
    assert chunks[-1] == 2048


@pytest.mark.parametrize(
    "error",
    [failure(IGNORED), failure(FAULT), RuntimeError("[metal::malloc] Unable to allocate 9 bytes.")],
)
def test_lasting_gpu_errors_end_the_process(error: RuntimeError, model: LoadedModel) -> None:
    engine, _ = _engine("batched", model)
    with pytest.raises(RuntimeError) as caught:
        GpuRecovery(engine.recompute_all).recover(error)
    assert caught.value is error


def test_lasting_echoes_of_a_gpu_error_end_the_process(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = _engine("batched", model)
    echoes = [failure(VICTIM), failure(IGNORED)]

    def synchronize(*_: Any) -> None:
        raise echoes.pop(0)

    monkeypatch.setattr(mx, "synchronize", synchronize)
    with pytest.raises(RuntimeError, match="SubmissionsIgnored"):
        GpuRecovery(engine.recompute_all).recover(failure(TIMEOUT))


def test_many_failures_do_not_pass(model: LoadedModel) -> None:
    engine, _ = _engine("batched", model)
    now = 0.0
    recovery = GpuRecovery(engine.recompute_all, lambda: now)
    for _ in range(8):
        recovery.recover(failure(TIMEOUT))
    with pytest.raises(RuntimeError, match="Timeout"):
        recovery.recover(failure(TIMEOUT))
    now = 601.0
    recovery.recover(failure(TIMEOUT))


def test_ranks_end_together(model: LoadedModel) -> None:
    """The others have computed what this one hasn't."""
    engine, _ = _engine("batched", model)
    engine._make_generator = lambda *of: Generator(*of)  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="Timeout"):
        GpuRecovery(engine.recompute_all).recover(failure(TIMEOUT))


def test_vectors_are_computed_anew() -> None:
    expected = Bench("bert").run()
    bench = Bench("bert")
    recovery = GpuRecovery(bench.engine.recompute_all)
    states, failures = bench.vectors._backbone.states, [failure(TIMEOUT), failure(VICTIM)]

    def fails_twice(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return states(*arguments)

    bench.vectors._backbone.states = fails_twice  # type: ignore[method-assign]
    bench.engine.add_job(VectorJob("r", "embedding", TEXTS))
    while bench.engine.active:
        try:
            bench.engine.step()
        except RuntimeError as error:
            recovery.recover(error)
    assert not failures
    np.testing.assert_allclose(bench.received("r"), expected, atol=1e-5)


def test_kinds() -> None:
    assert [passing_kind(failure(text)) for text in PASSING] == [
        "Timeout",
        "ImpactingInteractivity",
        "InnocentVictim",
    ]
    assert passing_kind(ValueError(TIMEOUT)) is None


@pytest.mark.parametrize("what", [*PASSING, IGNORED, FAULT, "Insufficient Memory"])
def test_a_load_that_fails_by_the_gpu_may_succeed_later(what: str) -> None:
    assert may_pass(failure(what))


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (MemoryError(), True),
        (RuntimeError("[malloc] Unable to allocate 68719476736 bytes."), True),
        (RuntimeError("cudaMallocAsync(&data, size, stream) failed: out of memory"), True),
        (RuntimeError("[read] Unable to read 4096 bytes from file."), True),
        (RuntimeError("GatherQMM has no GPU implementation."), False),
        (RuntimeError("[metal_kernel] No Metal back-end."), False),
        (RuntimeError("[Compile::eval_cpu] float8 is not supported."), False),
        (RecursionError("maximum recursion depth exceeded"), False),
        (NotImplementedError("NYI"), False),
        (ValueError("[matmul] Last dimension of first input with shape (1,2)"), False),
        (TypeError("unsupported operand type(s) for *: 'NoneType' and 'array'"), False),
        (AssertionError(), False),
    ],
)
def test_errors_of_a_load_that_may_pass(error: Exception, passes: bool) -> None:
    assert may_pass(error) is passes
