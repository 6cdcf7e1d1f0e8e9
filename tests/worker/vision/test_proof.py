"""The cached prompt of a conversation about a picture proves itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.life import CacheProven, CacheQuarantined
from tests.support.pictures import RED, png
from tests.worker.vision.serving import Serving, ask, user
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, CacheSizes
from worker.load.loading import load
from worker.prompt_cache.cache import PromptCache
from worker.runtime.proof import Proof
from worker.runtime.recomputing import Recomputing

pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")

LONG = "What is to be seen here? " * 20


@pytest.mark.parametrize("kind", ["qwen2_vl", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_blocks_before_a_picture_are_computed_anew(tmp_path: Path, kind: str) -> None:
    from tests.support.picture_model import picture_model

    model = load(
        str(picture_model(tmp_path / "model", kind)),
        lambda _done, _total: None,
        lambda: False,
        pictures=True,
    )
    serving = Serving(model, cached=True)
    quarantined: list[CacheQuarantined] = []
    proven: list[CacheProven] = []
    cache = serving.cache
    assert isinstance(cache, PromptCache)
    cache._report = quarantined.append
    generate = ask("r", user(LONG), user(LONG, png(RED)), tokens=2)
    found = [serving.run(generate)[1] for _ in range(2)]
    assert found[0] == 0 < found[1]
    room = CacheRoom(CacheSizes(0, 0, 1.0))
    recomputing = Recomputing(serving.engine, Caches(model.model), cache, room)
    now = [0.0]
    proof = Proof(cache, recomputing, proven.append, lambda: now[0])
    for _ in range(30):
        now[0] += proof.quiet_s
        proof.go_on(lambda: False)
    assert not quarantined
    tokens = sum(message.tokens for message in proven)
    assert 0 < tokens < found[1]
    assert sum(message.blocks for message in proven) > tokens // 64
