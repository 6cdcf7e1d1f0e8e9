"""A folder of every architecture of mlx-lm is found, loaded and computed in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import pytest

from gateway.library.description import describe
from tests.support import shapes
from tests.support.architectures import NEED_METAL, TINY
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, CacheSizes, measure
from worker.engines.sequence import Engine, Sequence
from worker.engines.sequential import SequentialEngine
from worker.load.loading import load
from worker.mlx_lm.batching_trial import try_batching

# One of each kind of cache. The others are for `make test-more`.
ORDINARY: Final = (
    "deepseek_v32",
    "gemma4",
    "lfm2",
    "llama4",
    "longcat_flash_ngram",
    "nemotron-nas",
    "nemotron_h",
)
FAILS: Final = {
    "gear": "transformers, which reads the tokenizer, refuses its layer types",
}
# MLX ends the process with its first forward pass on a CPU.
CRASHES: Final = "phi3small"


UNBOUNDED: Final = CacheRoom(CacheSizes(0, 0, 1.0))
TOKENS: Final = 5


def _marked(architecture: str) -> Any:
    marks = []
    if architecture not in ORDINARY:
        marks.append(pytest.mark.slow)
    if architecture in FAILS:
        marks.append(pytest.mark.xfail(strict=True, reason=FAILS[architecture]))
    if architecture == CRASHES or (architecture in NEED_METAL and mx.default_device() == mx.cpu):
        marks.append(pytest.mark.skip(reason="MLX can't compute it here"))
    return pytest.param(architecture, marks=marks)


@pytest.mark.parametrize("architecture", [_marked(text) for text in TINY])
def test_it_is_loaded_and_answers(architecture: str, tmp_path: Path) -> None:
    folder = shapes.write(tmp_path / "model", {"model_type": architecture, **TINY[architecture]})
    assert describe(folder).problem is None
    loaded = load(str(folder), lambda _done, _total: None, lambda: False)
    caches = Caches(loaded.model, None)
    measure(caches.run, caches.make)
    engine: Engine
    if caches.can_be_merged and try_batching(caches.model).fault is None:
        engine = BatchedEngine(caches.model, loaded.eos_token_ids, 8, UNBOUNDED)
    else:
        engine = SequentialEngine(loaded.model, loaded.eos_token_ids, UNBOUNDED, caches)
    prompts = "Bulkhead", "Once there was a ship with seven holds"
    for prompt in prompts:
        ids = loaded.tokenizer.encode(prompt)
        engine.add(Sequence(prompt, ids, TOKENS, None, ignore_eos=True))
    found = [token.request_id for _ in range(3 * TOKENS) for token in engine.step()]
    assert sorted(found) == sorted(prompts * TOKENS)
