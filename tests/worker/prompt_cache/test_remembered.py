"""What a model saw in pictures is kept like a block."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from worker.mlx_lm.caches import make_caches
from worker.mlx_lm.models import small_llama
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache


@pytest.fixture
def cache() -> PromptCache:
    model = small_llama(64)
    return PromptCache(Cutter(model, lambda: make_caches(model)), None)


class _Computing:
    def __init__(self, result: Any) -> None:
        self.result = result
        self.times = 0

    def __call__(self) -> Any:
        self.times += 1
        return self.result


def test_a_result_is_computed_once(cache: PromptCache) -> None:
    seen = _Computing((mx.ones((4, 8)), [mx.zeros((2,)), mx.ones((3,))]))
    first, again = (cache.remember(b"a", seen) for _ in range(2))
    assert seen.times == 1
    assert first is again is seen.result
    assert cache.evictable_bytes >= (4 * 8 + 2 + 3) * 4


def test_it_goes_where_there_is_no_room(cache: PromptCache) -> None:
    seen = _Computing(mx.ones((4, 8)))
    cache.remember(b"a", seen)
    cache.shrink(0)
    assert cache.bytes_ == 0
    cache.remember(b"a", seen)
    assert seen.times == 2


def test_the_last_used_stays(cache: PromptCache) -> None:
    old, new = _Computing(mx.ones((400,))), _Computing(mx.ones((400,)))
    cache.remember(b"old", old)
    cache.remember(b"new", new)
    cache.remember(b"old", old)
    cache.shrink(cache.bytes_ - 1)
    cache.remember(b"old", old)
    assert old.times == 1
    cache.remember(b"new", new)
    assert new.times == 2


@pytest.mark.parametrize("result", ["a text", mx.zeros((17_000_000,))], ids=["text", "large"])
def test_other_results_are_not_remembered(cache: PromptCache, result: Any) -> None:
    seen = _Computing(result)
    assert cache.remember(b"a", seen) is cache.remember(b"a", seen)
    assert seen.times == 2
    assert cache.bytes_ == 0
