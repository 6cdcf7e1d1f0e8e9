"""Bytes of caches, against what mlx-lm's own caches hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from click.testing import CliRunner
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from gateway.cli.estimate import estimate_command
from gateway.memory.caches import cache_shape
from gateway.memory.estimate import Estimate, EstimateTerms, estimate
from gateway.memory.fitting import (
    LEAST_CONTEXT_TOKENS,
    PROCESS_BYTES,
    Learned,
    fit,
    shortened,
)
from gateway.memory.weights import EstimateError, read_weights
from gateway.system.memory import BackEnd, back_end
from tests.support import shapes

BUILT: dict[str, Callable[[Path], Path]] = {
    "demo": lambda _: shapes.DEMO,
    "sparse": lambda folder: shapes.sparse(folder, 25),
    "sliding window": shapes.sliding_window,
    "state space": shapes.state_space,
    "chunked attention": shapes.chunked_attention,
}

# Within a step of the caches, and beyond two and every window.
TOKENS = [200, 600]


def _estimate(
    folder: Path, context_tokens: int, ordinary_tokens: int = 4096, measured: int | None = None
) -> Estimate:
    process_bytes = PROCESS_BYTES[BackEnd.CPU]
    terms = EstimateTerms(context_tokens, ordinary_tokens, process_bytes, measured, BackEnd.CPU)
    return estimate(folder, terms)


def _held_bytes(model: Any, tokens: int) -> int:
    caches = make_prompt_cache(model)
    for begin in range(0, tokens - 1, 256):
        ids = mx.array([[5] * min(256, tokens - 1 - begin)])
        mx.eval(model(ids, cache=caches))
    # Windows are cut back to their size with the first token that is generated.
    mx.eval(model(mx.array([[5]]), cache=caches))
    return sum(cache.nbytes for cache in caches)


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("tokens", TOKENS)
def test_caches_of_the_shapes_that_tests_build(name: str, tokens: int, tmp_path: Path) -> None:
    folder = BUILT[name](tmp_path / "model")
    model, config = load_model(folder)
    shape = cache_shape(config, 4)
    assert shape.sequence_bytes(tokens) == pytest.approx(_held_bytes(model, tokens), rel=0.05)


def test_weights_are_those_of_the_headers(tmp_path: Path) -> None:
    arrays = {
        "a.weight": mx.zeros((64, 8), mx.uint32),
        "a.scales": mx.zeros((64, 1), mx.bfloat16),
        "a.biases": mx.zeros((64, 1), mx.bfloat16),
    }
    mx.save_safetensors(str(tmp_path / "model-00001-of-00002.safetensors"), arrays)
    mx.save_safetensors(
        str(tmp_path / "model-00002-of-00002.safetensors"), {"b": mx.zeros(10, mx.float32)}
    )
    weights = read_weights(tmp_path)
    assert weights.bytes == 64 * 8 * 4 + 2 * 64 * 2 + 40
    assert weights.element_bytes == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 100,
        b"\x02\0\0\0\0\0\0\0[]",
        b'\x09\0\0\0\0\0\0\0{"a": {}}',
        b'\x1f\0\0\0\0\0\0\0{"a": {"data_offsets": [0, 8]}}',
        b"\xff\xff\x01\0\0\0\0\0" + b"[" * 0x1FFFF,
    ],
)
def test_damaged_headers(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(EstimateError):
        read_weights(tmp_path)


def test_no_weights_and_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(EstimateError, match="no weights"):
        _estimate(tmp_path, 100)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"b": mx.zeros(10)})
    with pytest.raises(EstimateError, match=r"config.json can't be read"):
        _estimate(tmp_path, 100)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(EstimateError, match=r"config.json has no JSON object"):
        _estimate(tmp_path, 100)


def test_side_files_count_with_pictures(tmp_path: Path) -> None:
    (tmp_path / "optiq").mkdir()
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"a": mx.zeros(10, mx.float32)})
    mx.save_safetensors(str(tmp_path / "optiq/v.safetensors"), {"b": mx.zeros(5, mx.float32)})
    index = '{"weight_map": {"a": "model.safetensors", "b": "optiq/v.safetensors"}}'
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert read_weights(tmp_path).bytes == 40
    assert read_weights(tmp_path, pictures=True).bytes == 60


def test_only_what_mlx_lm_reads_counts_and_once(tmp_path: Path) -> None:
    for name in ("model.safetensors", "model-00001-of-00001.safetensors"):
        mx.save_safetensors(str(tmp_path / name), {"a": mx.zeros(10, mx.float32)})
    for name in ("adapters.safetensors", "consolidated.safetensors"):
        mx.save_safetensors(str(tmp_path / name), {"b": mx.zeros(1000, mx.float32)})
    assert read_weights(tmp_path).bytes == 40


@pytest.mark.parametrize(
    "config",
    ['{"num_hidden_layers": 1000000000}', '{"num_hidden_layers": 1, "layer_types": [[]]}'],
)
def test_configurations_that_make_no_sense(config: str, tmp_path: Path) -> None:
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"b": mx.zeros(10)})
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(EstimateError, match=r"can't be (understood|read)"):
        _estimate(tmp_path, 100)


class TestCommand:
    def run(self, model: str, state_dir: Path) -> tuple[int, str]:
        result = CliRunner().invoke(estimate_command, [model, "--state-dir", str(state_dir)])
        return result.exit_code, result.output

    def test_missing_files_are_no_estimate(self, tmp_path: Path) -> None:
        status, output = self.run(str(tmp_path / "none"), tmp_path)
        assert (status, "no model folder" in output) == (4, True)

    def test_folder_without_a_model_is_no_estimate(self, tmp_path: Path) -> None:
        status, output = self.run(str(tmp_path), tmp_path)
        assert (status, "there is no config.json" in output) == (4, True)

    @pytest.mark.processes
    def test_a_configuration_without_sizes(self, tmp_path: Path) -> None:
        mx.save_safetensors(str(tmp_path / "model.safetensors"), {"b": mx.zeros(10)})
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        status, output = self.run(str(tmp_path), tmp_path)
        assert (status, "doesn't tell the number and sizes" in output) == (1, True)


class TestFloor:
    def test_it_is_the_sum_of_its_parts(self) -> None:
        result = _estimate(shapes.DEMO, 32768)
        config = json.loads((shapes.DEMO / "config.json").read_text())
        assert result.context_tokens == config["max_position_embeddings"]
        assert sum(line.bytes for line in result.lines) == result.floor_bytes
        assert result.fixed_bytes < result.floor_bytes <= result.whole_bytes

    def test_it_has_one_sequence_of_ordinary_length(self) -> None:
        result = _estimate(shapes.DEMO, 2048, 512)
        assert result.floor_bytes == result.limit_bytes(1, 512)
        assert result.floor_bytes < result.whole_bytes == result.limit_bytes(1, 2048)

    def test_or_of_the_whole_context_if_that_is_shorter(self) -> None:
        result = _estimate(shapes.DEMO, 300, 4096)
        assert result.floor_bytes == result.whole_bytes == result.limit_bytes(1, 300)

    def test_weights_have_no_margin(self) -> None:
        result = _estimate(shapes.DEMO, 1024)
        margin = next(line.bytes for line in result.lines if line.name == "margin")
        uncertain = result.floor_bytes - margin - result.fixed_bytes
        assert margin == int(uncertain * 1.15) - uncertain
        assert result.fixed_bytes == PROCESS_BYTES[BackEnd.CPU] + result.weight_bytes

    def test_measured_bytes_replace_calculated_bytes(self) -> None:
        calculated = _estimate(shapes.DEMO, 1024)
        measured = _estimate(shapes.DEMO, 1024, measured=70_000_000)
        assert measured.fixed_bytes == 70_000_000
        assert measured.floor_bytes - 70_000_000 == calculated.floor_bytes - calculated.fixed_bytes
        assert sum(line.bytes for line in measured.lines) == measured.floor_bytes


class TestRoom:
    def test_rows_fill_a_limit(self) -> None:
        result = _estimate(shapes.DEMO, 2048)
        for rows in (1, 2, 7, 100):
            limit_bytes = result.limit_bytes(rows, 1000)
            assert result.rows(limit_bytes, 1000) == rows
            assert result.rows(limit_bytes - 1, 1000) in (rows - 1, rows)
            assert result.limit_bytes(rows + 1, 1000) > limit_bytes

    def test_no_row_is_longer_than_the_context(self) -> None:
        result = _estimate(shapes.DEMO, 1024)
        assert result.rows(10**12, 1025) == 0

    def test_the_longest_sequence_of_a_limit(self) -> None:
        result = _estimate(shapes.DEMO, 2048)
        for tokens in (256, 512, 1792):
            limit_bytes = result.limit_bytes(1, tokens)
            assert result.longest_tokens(limit_bytes) == tokens
            assert result.longest_tokens(limit_bytes - 1) == tokens - 256
        assert result.longest_tokens(10**12) == 2048
        assert result.longest_tokens(0) == 0

    def test_a_context_that_does_not_fit_is_cut(self, tmp_path: Path) -> None:
        result = _estimate(shapes.dense(tmp_path / "dense"), 32768)
        most_bytes = result.limit_bytes(1, 8192)
        found = fit(result, most_bytes)
        assert (found.fits, found.is_cut, found.context_tokens) == (True, True, 8192)
        assert shortened(result, most_bytes).floor_bytes == result.floor_bytes
        short = fit(result, result.limit_bytes(1, LEAST_CONTEXT_TOKENS) - 1)
        assert (short.fits, short.context_tokens) == (False, LEAST_CONTEXT_TOKENS)


class TestLearned:
    def test_it_is_remembered(self, tmp_path: Path) -> None:
        path = tmp_path / "learned.json"
        Learned(path).put("a", 1)
        Learned(path).put_process(2)
        learned = Learned(path)
        assert (learned.fixed_bytes("a"), learned.fixed_bytes("b")) == (1, None)
        assert learned.process_bytes == learned.measured_process_bytes == 2

    def test_a_damaged_file_counts_as_empty(self, tmp_path: Path) -> None:
        path = tmp_path / "learned.json"
        path.write_bytes(b"{")
        learned = Learned(path)
        assert (learned.fixed_bytes("a"), learned.measured_process_bytes) == (None, None)
        assert learned.process_bytes == PROCESS_BYTES[back_end()]
