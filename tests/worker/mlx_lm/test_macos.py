"""What a model of several ranks asks of the others, in prompts and in answers."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from tests.support import shapes
from tests.support.shapes import splittable
from tests.worker.ranks.test_parts import Group
from worker.load.loading import load, load_weights
from worker.mlx_lm.macos import Reads
from worker.ranks.group import split_model


@pytest.fixture
def pending(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was still to be computed of what was handed over, call by call."""
    calls: list[list[str]] = []

    def all_sum(values: mx.array, *, group: Any) -> mx.array:
        calls.append(_pending(values))
        return values * group.size()

    monkeypatch.setattr(mx.distributed, "all_sum", all_sum)
    return calls


def _pending(values: mx.array) -> list[str]:
    graph = io.StringIO()
    mx.export_to_dot(graph, values)
    return re.findall(r'label ="(\w+)"', graph.getvalue())


def test_in_prompts_they_are_evaluated_by_themselves(
    tmp_path: Path, pending: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, config = load_weights(splittable(tmp_path / "model", "llama"))
    split_model(model, config, Group(2), "tensor")
    mx.eval(model.parameters())
    evaluated: list[Any] = []
    evaluate = mx.eval

    def record(*arrays: Any) -> None:
        evaluated.extend(arrays)
        evaluate(*arrays)

    monkeypatch.setattr(mx, "eval", record)
    caches = make_prompt_cache(model)
    model(mx.array([[3, 4, 5, 6]]), cache=caches)
    # Two for each of two layers: before each what it takes, and behind it what it gives.
    assert pending == [[]] * 4
    assert len(evaluated) == 8
    logits = model(mx.array([[7]]), cache=caches)
    assert len(evaluated) == 8
    assert len(pending) == 8
    assert all(pending[4:])
    # A whole prompt gives the same.
    again = model(mx.array([[3, 4, 5, 6, 7]]), cache=make_prompt_cache(model))
    assert mx.allclose(logits[:, -1], again[:, -1], atol=1e-4)


def test_splitting_twice_keeps_them_apart_once(tmp_path: Path, pending: list[list[str]]) -> None:
    for _ in range(2):
        model, config = load_weights(splittable(tmp_path / str(len(pending)) / str(_), "llama"))
        split_model(model, config, Group(2), "tensor")
    mx.eval(model.parameters())
    model(mx.array([[3, 4]]))
    assert pending == [[]] * 4


_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_LATENT = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        "head_dim": 16,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 64,
        "mlp_only_layers": [],
        "partial_rotary_factor": 0.5,
        "full_attention_interval": 2,
    },
    "deepseek_v3": _LATENT,
    "glm4_moe_lite": _LATENT,
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 4,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
}


def _as_published(kind: str, folder: Path) -> Path:
    """A model whose weights are laid out as in Hugging Face's checkpoints: an array an expert, the
    latent's two parts in one, and DeepSeek's in 8 bits with scales.
    """
    shapes.write(folder, {**_SMALL, **CONFIGS[kind], "model_type": kind})
    path = folder / "model.safetensors"
    weights: dict[str, mx.array] = {}
    for name, array in mx.load(str(path)).items():  # type: ignore[union-attr]
        if ".switch_mlp." in name:
            before, after = name.split(".switch_mlp.")
            for expert in range(array.shape[0]):
                weights[f"{before}.experts.{expert}.{after}"] = mx.contiguous(array[expert])
        elif name.endswith(".embed_q.weight"):
            before = name.removesuffix("embed_q.weight")
            values = mx.load(str(path))[f"{before}unembed_out.weight"]  # type: ignore[call-overload,index]
            parts = mx.concatenate([array.swapaxes(-1, -2), values], axis=1)
            weights[f"{before}kv_b_proj.weight"] = parts.reshape(-1, parts.shape[-1])
        elif "unembed_out" not in name:
            weights[name] = array
    if kind == "deepseek_v3":
        for name in [weight for weight in weights if weight.endswith("_proj.weight")]:
            rows, columns = weights[name].shape
            weights[name] = mx.to_fp8(weights[name])
            scales = mx.ones((-(-rows // 128), -(-columns // 128)))
            weights[name.replace("weight", "weight_scale_inv")] = scales
    mx.eval(weights)
    mx.save_safetensors(str(path), weights, {"format": "pt"})
    return folder


@pytest.fixture
def computed_on(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """For each array that is asked for: the operations that it needs."""
    asked: list[list[str]] = []

    def noted(evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            for _, array in tree_flatten(list(arguments)):
                if isinstance(array, mx.array):
                    graph = io.StringIO()
                    mx.export_to_dot(graph, array)
                    asked.append(re.findall(r'label ="(\w+)"', graph.getvalue()))
            return evaluate(*arguments)

        return call

    for name in ("eval", "async_eval"):
        monkeypatch.setattr(mx, name, noted(getattr(mx, name)))
    return asked


@pytest.mark.parametrize("kind", CONFIGS)
def test_nothing_is_computed_of_what_is_not_read(
    kind: str, tmp_path: Path, computed_on: list[list[str]]
) -> None:
    folder = _as_published(kind, tmp_path / "model")
    computed_on.clear()
    loaded = load(str(folder), lambda _done, _total: None, lambda: False)
    assert any(values and values != ["Load"] for values in computed_on), (
        "its sanitizer computes nothing"
    )
    assert [values for values in computed_on if "Load" in values and values != ["Load"]] == []
    names = dict(tree_flatten(loaded.model.parameters()))
    assert any("switch_mlp" in name for name in names)


def test_given_sources_are_released(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    mx.save_safetensors(str(path), {name: mx.ones((1 << 20,)) for name in "abcd"})
    reads = Reads()
    with reads.recorded():
        loaded: Any = mx.load(str(path))
    both, one = mx.stack([loaded["a"], loaded["b"]]), loaded["c"]
    again = loaded["b"] + 1
    del loaded
    before_bytes = mx.get_active_memory()
    assert reads.sources_of(one) == []
    sources = reads.sources_of(both)
    assert len(sources) == 2
    mx.eval(sources)
    # Whoever needs it next has it already.
    assert reads.sources_of(again) == []
    sources.clear()
    mx.eval(both, again)
    held_bytes = mx.get_active_memory() - before_bytes
    assert held_bytes == pytest.approx(both.nbytes + again.nbytes, abs=1000)


def test_many_arrays_are_distinguished(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    mx.save_safetensors(str(path), {f"w{index}": mx.array([index]) for index in range(2500)})
    reads = Reads()
    with reads.recorded():
        loaded: Any = mx.load(str(path))
    parts = [mx.stack([loaded[f"w{index + i}"] for i in range(50)]) for index in range(0, 2500, 50)]
    for index, part in enumerate(parts):
        found = {source.item() for source in reads.sources_of(part)}
        assert found == set(range(50 * index, 50 * index + 50))


def test_a_load_is_as_before(tmp_path: Path) -> None:
    """The weights are those of the layout that nothing is computed of."""
    plain = shapes.write(
        tmp_path / "plain", {**_SMALL, **CONFIGS["qwen3_moe"], "model_type": "qwen3_moe"}
    )
    expected = dict(
        tree_flatten(load(str(plain), lambda _d, _t: None, lambda: False).model.parameters())
    )
    published = _as_published("qwen3_moe", tmp_path / "published")
    found = dict(
        tree_flatten(load(str(published), lambda _d, _t: None, lambda: False).model.parameters())
    )
    assert found.keys() == expected.keys()
    assert all(mx.array_equal(found[name], array) for name, array in expected.items())


def test_a_load_holds_what_one_slice_is_computed_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _as_published("qwen3_moe", tmp_path / "model")
    monkeypatch.setattr("worker.load.loading._SLICE_BYTES", 1)
    mx.clear_cache()
    before_bytes = mx.get_active_memory()
    mx.reset_peak_memory()
    loaded = load(str(folder), lambda _done, _total: None, lambda: False)
    arrays = dict(tree_flatten(loaded.model.parameters())).values()
    beside_bytes = mx.get_peak_memory() - before_bytes - loaded.weight_bytes
    assert beside_bytes <= max(array.nbytes for array in arrays)
