"""What adapters, draft models and quantized caches take, against mlx-lm's own."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest
from mlx_lm.models.cache import QuantizedKVCache
from safetensors import safe_open

from gateway.memory.caches import cache_shape
from gateway.memory.estimate import Estimate, EstimateTerms, estimate, model_key
from gateway.memory.weights import EstimateError, LoadOptions, part_of, read_weights
from gateway.memory.working_space import picture_bytes, working_bytes
from gateway.system.memory import BackEnd
from gateway.system.memory_reading import Footprint, together
from protocol.life import DRAFT_TOKENS, LARGEST_CHUNK_TOKENS
from protocol.requests import MOST_PIXELS, MOST_SEEN_PIXELS
from tests.support import shapes
from tests.support.eagles import as_speculators, circle_model, config_of, random_weights
from tests.support.own_heads import OwnHead, write
from tests.support.shapes import DEMO
from worker.engines.room import NO_CACHES
from worker.engines.row_computer import make_draft, make_head_draft, sizes_with
from worker.load.loading import load_weights
from worker.mlx_lm.eagle3 import Eagle3

PROCESS = 50_000_000
HEADS, SIZE, LAYERS = 2, 128, 3
CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": HEADS,
    "head_dim": SIZE,
}


def _estimate(options: LoadOptions) -> Estimate:
    return estimate(shapes.DEMO, EstimateTerms(1024, 512, PROCESS, None, BackEnd.CPU, options))


def _adapter(folder: Path) -> Path:
    folder.mkdir()
    weights = {"lora_a": mx.zeros((64, 8)), "lora_b": mx.zeros((8, 64))}
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    # As training leaves it behind; mlx-lm doesn't load it.
    mx.save_safetensors(str(folder / "0000100_adapters.safetensors"), weights)
    return folder


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", [mx.bfloat16, mx.float32])
def test_a_quantized_token(bits: int, kind: mx.Dtype) -> None:
    cache = QuantizedKVCache(group_size=64, bits=bits)
    rows = mx.zeros((1, HEADS, cache.step, SIZE), kind)
    cache.update_and_fetch(rows, rows)
    shape = cache_shape(CONFIG, kind.size, bits)
    assert shape.full_token_bytes * cache.step == LAYERS * cache.nbytes
    assert shape.full_token_bytes < cache_shape(CONFIG, kind.size).full_token_bytes


def test_windows_are_not_quantized() -> None:
    config = {**CONFIG, "model_type": "gemma3_text", "sliding_window": 64}
    config["sliding_window_pattern"] = 3
    plain, quantized = (cache_shape(config, 2, bits) for bits in (None, 4))
    assert plain.window_token_bytes == quantized.window_token_bytes > 0
    assert quantized.full_token_bytes < plain.full_token_bytes / 3


def test_attention_over_quantized_caches_is_no_kernel() -> None:
    """So its scores take room where those of others don't."""
    tokens, heads = 8192, 4
    plain, quantized = (
        working_bytes(CONFIG, 2, tokens, BackEnd.METAL, quantized=flag) for flag in (False, True)
    )
    assert quantized - plain == heads * LARGEST_CHUNK_TOKENS * tokens * 2
    assert _estimate(LoadOptions(8)).token_bytes < _estimate(LoadOptions()).token_bytes


def test_an_adapter_counts_with_what_is_loaded_of_it(tmp_path: Path) -> None:
    plain, adapted = (
        _estimate(LoadOptions()),
        _estimate(LoadOptions(adapter=_adapter(tmp_path / "a"))),
    )
    assert adapted.adapter_bytes == 2 * 64 * 8 * 4
    assert adapted.floor_bytes == plain.floor_bytes + adapted.adapter_bytes
    assert sum(line.bytes for line in adapted.lines) == adapted.floor_bytes
    assert [estimate_line.name for estimate_line in adapted.lines][1:3] == ["weights", "adapter"]


def test_an_adapter_that_is_damaged(tmp_path: Path) -> None:
    folder = _adapter(tmp_path / "a")
    (folder / "adapters.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(EstimateError, match=r"adapters.safetensors is damaged"):
        _estimate(LoadOptions(adapter=folder))


def test_a_draft_model_counts_with_weights_and_caches() -> None:
    plain, drafted = _estimate(LoadOptions()), _estimate(LoadOptions(draft=shapes.DEMO))
    assert drafted.draft_bytes == read_weights(shapes.DEMO).bytes
    assert drafted.fixed_bytes == plain.fixed_bytes + drafted.draft_bytes
    assert drafted.token_bytes == plain.token_bytes
    assert drafted.working_bytes == plain.working_bytes
    for rows, tokens, known in ((1, 512, 512), (4, 1024, 1024), (2, 8192, DRAFT_TOKENS)):
        more = drafted.limit_bytes(rows, tokens) - plain.limit_bytes(rows, tokens)
        own_bytes = drafted.draft_bytes + plain.shape.peak_bytes(rows, known)
        assert own_bytes <= more <= 1.2 * own_bytes
    assert sum(line.bytes for line in drafted.lines) == drafted.floor_bytes


@pytest.mark.parametrize("kind", ["qwen3_5", "deepseek_v3"])
def test_an_own_head_counts_with_weights_and_caches(kind: str, tmp_path: Path) -> None:
    own = OwnHead(kind)
    weights = own.converted()
    heads = {name for name in weights if re.search(r"mtp\.|layers\.4\.", name)}
    without = {name: weight for name, weight in weights.items() if name not in heads}
    terms = EstimateTerms(8192, 512, PROCESS, None, BackEnd.CPU)
    plain = estimate(write(tmp_path / "plain", own.config, without), terms)
    headed = estimate(write(tmp_path / "headed", own.config, weights), terms)
    assert headed.weight_bytes - plain.weight_bytes == sum(weights[head].nbytes for head in heads)
    model, _ = load_weights(tmp_path / "headed", own_head=True)
    draft = make_head_draft(model, 3)
    assert draft is not None
    sizes = sizes_with(draft, NO_CACHES)
    for tokens, known in ((512, 512), (8192, DRAFT_TOKENS)):
        more = headed.limit_bytes(2, tokens) - plain.limit_bytes(2, tokens)
        more -= headed.weight_bytes - plain.weight_bytes
        own_bytes = 2 * (known * sizes.draft_token_bytes + sizes.row_bytes)
        assert own_bytes <= more <= 4 * own_bytes
    drafted = msgspec.structs.replace(terms, options=LoadOptions(draft=shapes.DEMO))
    assert estimate(tmp_path / "headed", drafted).draft_bytes > 0


def test_a_split_head_counts_as_an_own_head(tmp_path: Path) -> None:
    own = OwnHead("qwen3_5")
    weights = own.converted()
    heads = {name.partition("mtp.")[2]: weights.pop(name) for name in [*weights] if "mtp." in name}
    terms = EstimateTerms(8192, 512, PROCESS, None, BackEnd.CPU)
    model = write(tmp_path / "model", own.config, weights)
    plain, key = estimate(model, terms), model_key(model, None)
    config = {"model_type": "qwen3_5_mtp", "text_config": own.config}
    head = write(tmp_path / "elsewhere", config, heads)
    named = estimate(model, msgspec.structs.replace(terms, options=LoadOptions(draft=head)))
    write(tmp_path / "model-mtp", config, heads)
    headed = estimate(write(tmp_path / "whole", own.config, own.converted()), terms)
    for drafted in (named, estimate(model, terms)):
        assert drafted.draft_bytes == sum(item.nbytes for item in heads.values())
        assert drafted.fixed_bytes == headed.fixed_bytes
        assert drafted.limit_bytes(4, 4096) == headed.limit_bytes(4, 4096)
    assert named.limit_bytes(4, 4096) > plain.limit_bytes(4, 4096)
    assert model_key(model, None) != key
    looking = msgspec.structs.replace(terms, options=LoadOptions(pictures=True))
    assert estimate(model, looking).draft_bytes == 0


@pytest.mark.parametrize("form", ["authors'", "speculators"])
def test_eagle_3_counts_with_weights_caches_and_states(form: str, tmp_path: Path) -> None:
    config, weights, _ = circle_model()
    terms = EstimateTerms(2048, 512, PROCESS, None, BackEnd.CPU)
    folder = write(tmp_path / "model", config, weights)
    drafter = config_of(64, 300, draft_vocab_size=90), random_weights(config_of(64, 300))
    if form == "speculators":
        drafter = as_speculators(*drafter, [2, 4, 5])
    options = LoadOptions(draft=write(tmp_path / "eagle", *drafter))
    plain = estimate(folder, terms)
    drafted = estimate(folder, msgspec.structs.replace(terms, options=options))
    assert drafted.draft_bytes == sum(item.nbytes for item in drafter[1].values())
    model, _ = load_weights(folder)
    random_config = config_of(64, 300)
    eagle = Eagle3(random_config, random_weights(random_config))
    sizes = sizes_with(make_draft(model, eagle, 3), NO_CACHES)
    more = drafted.limit_bytes(2, 2048) - plain.limit_bytes(2, 2048) - drafted.draft_bytes
    own_bytes = 2 * (DRAFT_TOKENS * sizes.draft_token_bytes + sizes.row_bytes)
    assert own_bytes <= more <= 4 * own_bytes


def test_measurements_are_of_one_set_of_files(tmp_path: Path) -> None:
    adapter = _adapter(tmp_path / "a")
    plain = model_key(shapes.DEMO, None)
    assert plain == model_key(shapes.DEMO, None, LoadOptions(kv_bits=8)), (
        "it is empty when measured"
    )
    keys = {plain, *(model_key(shapes.DEMO, None, options) for options in _sets(adapter))}
    assert len(keys) == 4
    before = model_key(shapes.DEMO, None, LoadOptions(adapter=adapter))
    os.utime(adapter / "adapters.safetensors", (2e9, 2e9))
    assert model_key(shapes.DEMO, None, LoadOptions(adapter=adapter)) != before


def _sets(adapter: Path) -> list[LoadOptions]:
    draft = shapes.DEMO
    return [
        LoadOptions(adapter=adapter),
        LoadOptions(draft=draft),
        LoadOptions(adapter=adapter, draft=draft),
    ]


def test_pictures() -> None:
    """Room to decode them, whatever the model; it is asked for by who is told to look at them."""
    plain, looking = _estimate(LoadOptions()), _estimate(LoadOptions(pictures=True))
    assert looking.fixed_bytes == plain.fixed_bytes
    assert looking.working_bytes - plain.working_bytes > MOST_PIXELS * 3
    config = {"vision_config": {"patch_size": 14, "embed_dim": 1280, "hidden_size": 1536}}
    # Of Qwen2-VL's tower: its inner layer's activations in bfloat16, some three of them.
    inner_bytes = MOST_SEEN_PIXELS // 14**2 * 4 * 1280 * 2
    seen_bytes = picture_bytes(config, 2) - picture_bytes({}, 2)
    assert 2 * inner_bytes < seen_bytes < 5 * inner_bytes


ALONE = LoadOptions()
TWO = LoadOptions(ranks=2, ranks_here=2)


def _of_ranks(options: LoadOptions) -> Estimate:
    return estimate(DEMO, EstimateTerms(1024, 512, PROCESS, None, BackEnd.CPU, options))


def test_every_rank_is_a_process_and_has_the_embedding_whole() -> None:
    alone, two = _of_ranks(ALONE), _of_ranks(TWO)
    with safe_open(DEMO / "model.safetensors", framework="numpy") as file:
        outside = [key for key in file.keys() if ".layers." not in key]  # noqa: SIM118
        outside_bytes = sum(file.get_tensor(item).nbytes for item in outside)
    assert two.weight_bytes == alone.weight_bytes + outside_bytes
    assert two.process_bytes == 2 * PROCESS
    assert two.working_bytes == 2 * alone.working_bytes
    # The heads are divided.
    assert two.shape == alone.shape
    assert sum(line.bytes for line in two.lines) == two.floor_bytes


def test_single_rank_in_each_memory_takes_its_part_alone() -> None:
    here = _of_ranks(msgspec.structs.replace(TWO, ranks_here=1))
    both = _of_ranks(TWO)
    assert both.weight_bytes == 2 * here.weight_bytes
    assert both.process_bytes == 2 * here.process_bytes
    assert both.token_bytes == 2 * here.token_bytes


@pytest.mark.parametrize(
    ("config", "ranks", "split", "expected"),
    [
        # Of five layers the first of two ranks has three.
        ({"num_hidden_layers": 5}, 2, "pipeline", (0.6, 0.6)),
        ({"num_hidden_layers": 5}, 4, "tensor", (0.25, 0.25)),
        # A latent can't be divided.
        ({"num_hidden_layers": 5, "kv_lora_rank": 8}, 4, "tensor", (0.25, 1.0)),
    ],
)
def test_the_part_of_the_rank_that_has_most(
    config: dict[str, Any], ranks: int, split: Any, expected: tuple[float, float]
) -> None:
    part = part_of(config, ranks, split)
    assert (part.weights, part.cache) == expected


def test_measurements_are_of_as_many_ranks() -> None:
    keys = {
        model_key(DEMO, None, options)
        for options in (ALONE, TWO, LoadOptions(ranks=4, ranks_here=4))
    }
    assert len(keys) == 3


def test_footprints_add_up_and_of_cards_the_fullest_counts() -> None:
    assert together([Footprint(3, 4), Footprint(5, 6)]) == Footprint(8, 10)
    assert together([Footprint(3, None, 7), Footprint(5, None, 9)]) == Footprint(8, None, 9)
