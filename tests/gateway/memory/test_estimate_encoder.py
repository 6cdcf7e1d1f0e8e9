"""What encoders take: no caches, and the scores of whole texts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from gateway.memory.estimate.estimate import Estimate, estimate
from gateway.system.memory import BackEnd
from protocol.encoders import encoder_of
from tests.support.minilm import minilm
from worker.mlx_embeddings import classes_of
from worker.vectors.trunks import Encoder

SMALL = Path(__file__).parents[2] / "worker" / "vectors" / "models"


def _estimate(folder: Path, system: BackEnd = BackEnd.CPU) -> Estimate:
    return estimate(folder, 32_768, 2048, 0, None, system)


@pytest.mark.parametrize("name", ["bert", "bert_ranker", "roberta_ranker", "modernbert", "gemma3"])
def test_encoders_keep_nothing_of_a_text(name: str) -> None:
    found = _estimate(SMALL / name)
    assert found.context_tokens == 48
    assert found.token_bytes == 0
    assert found.limit_bytes(8, 48) == found.limit_bytes(1, 48)


@pytest.mark.parametrize("tokens", [16, 512])
def test_a_batch_takes_no_more_than_is_estimated(tokens: int) -> None:
    found = _estimate(minilm())
    config = json.loads((minilm() / "config.json").read_text())
    # One layer is computed after the other.
    kind, arguments = classes_of({**config, "num_hidden_layers": 2})
    model = kind(arguments.from_dict({**config, "num_hidden_layers": 2}))
    mx.eval(model.parameters())
    rows = max(1, 256 // tokens)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(Encoder(model).states(mx.ones((rows, tokens), mx.int32), None, [tokens] * rows, None))
    taken = mx.get_peak_memory() - before
    assert taken <= found.working_bytes + found.working_token_bytes * tokens


def test_long_texts_have_many_scores(tmp_path: Path) -> None:
    folder = tmp_path / "long"
    shutil.copytree(SMALL / "modernbert", folder)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config |= {"max_position_embeddings": 8192, "num_attention_heads": 12}
    (folder / "config.json").write_text(json.dumps(config))
    found = _estimate(folder, BackEnd.METAL)
    assert found.whole_bytes - found.fixed_bytes > 12 * 8192 * 8192 * 4


def test_who_is_an_encoder() -> None:
    assert encoder_of({"model_type": "bert"}) == "bert"
    assert encoder_of({"model_type": "roberta"}) == "xlm_roberta"
    assert encoder_of({"model_type": "mpnet"}) == ""
    assert encoder_of({"model_type": "gemma3_text", "use_bidirectional_attention": True})
    assert encoder_of({"model_type": "gemma3_text"}) is None
    assert encoder_of({"model_type": ["bert"]}) is None
    assert encoder_of({}) is None
