"""A model's own head for several tokens is loaded from any layout of files, and guesses by the
published equations.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache, make_prompt_cache

from tests.support.own_heads import CONFIGS, LAYERS, OwnHead, write
from worker.load.loading import load_weights
from worker.mlx_lm.decoding_row import RowStates
from worker.mlx_lm.drafting import DraftedRow, Drafting
from worker.mlx_lm.heads import HeadDrafter
from worker.mlx_lm.row_caches import rows_caches

TOKENS = mx.array([[7, 200, 31, 5, 99, 150, 8, 31, 5, 42, 260, 13]])


def loaded(folder: Path, config: dict[str, Any], weights: dict[str, mx.array]) -> Any:
    return load_weights(write(folder, config, weights), own_head=True)[0]


def drafter_of(model: Any) -> HeadDrafter:
    drafter = HeadDrafter.of(model, 3)
    assert drafter is not None
    return drafter


def reference(own: OwnHead, tokens: mx.array, states: mx.array) -> tuple[mx.array, mx.array]:
    """The logits and states of a head without caches, by the equations of DeepSeek-V3's report."""

    def norm(array: mx.array, weight: mx.array) -> mx.array:
        return array * mx.rsqrt((array**2).mean(-1, keepdims=True) + 1e-5) * weight

    text: Any = getattr(own.model, "language_model", own.model)
    joint, embedding_norm, state_norm, last_norm = own.parts
    embedding = text.model.embed_tokens.weight
    both = [norm(embedding[tokens], embedding_norm), norm(states, state_norm)]
    joined = mx.concatenate(both, axis=-1) @ joint.T
    mask = create_attention_mask(joined, None, return_array=True)
    made = norm(own.layer(joined, mask, None), last_norm)
    output = text.lm_head.weight if "lm_head" in text else embedding
    return made @ output.T, made


def same(one: mx.array, other: mx.array, tolerance: float = 1e-3) -> bool:
    return bool(mx.allclose(one, other, rtol=tolerance, atol=tolerance))


@pytest.mark.parametrize("layout", ["converted", "published"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_heads_follow_the_equations(kind: str, layout: str, tmp_path: Path) -> None:
    own = OwnHead(kind)
    model = loaded(tmp_path, own.config, getattr(own, layout)())
    logits, states = model.with_states(TOKENS, make_prompt_cache(model))
    assert same(logits, own.model(TOKENS, cache=make_prompt_cache(own.model)))
    drafter = drafter_of(model)
    made = drafter(TOKENS[:, 1:], states[:, :-1], drafter.make_cache())
    for array, wanted in zip(made, reference(own, TOKENS[:, 1:], states[:, :-1]), strict=True):
        assert same(array, wanted)


@pytest.mark.parametrize("kind", CONFIGS)
def test_logits_beside_states_are_those_of_the_model(kind: str, tmp_path: Path) -> None:
    own = OwnHead(kind)
    model = loaded(tmp_path, own.config, own.converted())
    logits, _ = model.with_states(TOKENS, make_prompt_cache(model))
    assert mx.array_equal(logits, model(TOKENS, cache=make_prompt_cache(model)))


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_chain_of_guesses(kind: str, tmp_path: Path) -> None:
    """Each guess has the head's own state of the one before."""
    own = OwnHead(kind)
    model = loaded(tmp_path, own.config, own.converted())
    drafter = drafter_of(model)
    states = model.with_states(TOKENS, make_prompt_cache(model))[1][:, :-1]
    tokens, cache = TOKENS[:, 1:], drafter.make_cache()
    made, own_states = drafter(tokens, states, cache)
    for _ in range(4):
        wanted, wanted_states = reference(own, tokens, states)
        assert same(made[:, -1], wanted[:, -1])
        tokens = mx.concatenate([tokens, wanted[:, -1:].argmax(-1)], axis=1)
        states = mx.concatenate([states, wanted_states[:, -1:]], axis=1)
        made, own_states = drafter(tokens[:, -1:], own_states[:, -1:], cache)


@pytest.mark.parametrize("kind", CONFIGS)
def test_rows_of_a_batch_have_what_each_has_alone(kind: str, tmp_path: Path) -> None:
    own = OwnHead(kind)
    drafter = drafter_of(loaded(tmp_path, own.config, own.converted()))
    lengths = [2, 7, 4]
    states = mx.random.normal((3, 12, 64))
    alone = [drafter.make_cache() for _ in lengths]
    for row, length in enumerate(lengths):
        drafter(TOKENS[:, :length], states[row : row + 1, :length], alone[row])
    merged = KVCache.merge([values[0] for values in alone])
    (rows,) = rows_caches([merged])
    rows.reserve(40)
    wanted = [
        drafter(TOKENS[:, :3], states[row : row + 1, 7:10], values)
        for row, values in enumerate(alone)
    ]
    for cache in (merged, rows):
        made = drafter(mx.repeat(TOKENS[:, :3], 3, 0), states[:, 7:10], [cache])
        for part, wanted_parts in zip(made, zip(*wanted, strict=True), strict=True):
            assert same(part, mx.concatenate(wanted_parts))


def test_rows_come_and_go(tmp_path: Path) -> None:
    """The guesses of a row are those of the head for all of the row's tokens."""
    own = OwnHead("qwen3_5")
    model = loaded(tmp_path, own.config, own.converted())
    drafter = drafter_of(model)
    drafting = Drafting(drafter)
    chance = random.Random(3)
    texts: dict[int, list[int]] = {}
    states = {uid: RowStates() for uid in range(40)}
    noted = dict.fromkeys(states, 0)
    for uid in states:
        texts[uid] = [chance.randrange(5, 290) for _ in range(chance.choice((2, 9, 20)))]
        texts = {text: texts[text] for text in texts if len(texts[text]) < 50 and text > uid - 3}
        drafting.retain(texts)
        rows, wanted = [], []
        for index, tokens in texts.items():
            made = model.with_states(mx.array([tokens]), make_prompt_cache(model))[1]
            # A step that computes some tokens once more, and padding.
            begin = max(0, noted[index] - chance.randrange(2))
            padded = mx.concatenate([made[:, begin:-1], made[:, :3] * 0], axis=1)
            states[index].record(begin, len(tokens) - 1 - begin, mx.repeat(padded, 2, 0), 1)
            noted[index] = len(tokens) - 1
            count = chance.choice((0, 1, 3))
            rows.append(
                DraftedRow(index, len(tokens), partial(_since, tokens), count, states[index])
            )
            wanted.append(_chain(drafter, tokens, made[:, :-1], count))
        found, _ = drafting.guess(rows, lambda _: lambda logits: logits.argmax(-1))
        assert found == wanted
        for tokens, guesses in zip(texts.values(), found, strict=True):
            tokens += guesses[: chance.randrange(len(guesses) + 1)]
            tokens += [chance.randrange(5, 290) for _ in range(chance.choice((1, 1, 2, 6)))]


def _since(tokens: list[int], number: int) -> list[int]:
    return tokens[number:]


def _chain(drafter: HeadDrafter, tokens: list[int], states: mx.array, count: int) -> list[int]:
    if len(tokens) < 3:
        # There is no state before the first token, and the last one comes later.
        return []
    cache = drafter.make_cache()
    logits, own_states = drafter(mx.array([tokens[1:]]), states, cache)
    made: list[int] = []
    for _ in range(count):
        made.append(int(logits[0, -1].argmax()))
        logits, own_states = drafter(mx.array([made[-1:]]), own_states[:, -1:], cache)
    return made


@pytest.mark.parametrize("kind", CONFIGS)
def test_quantized_heads(kind: str, tmp_path: Path) -> None:
    """The head of a quantized model has the numbers that its weights stand for."""
    own = OwnHead(kind)
    config = {**own.config, "quantization": {"group_size": 32, "bits": 8}}
    packed: dict[str, mx.array] = {}
    plain: dict[str, mx.array] = {}
    for name, array in own.converted().items():
        plain[name] = array
        if array.ndim < 2 or name.endswith("conv1d.weight") or "gate.weight" in name:
            packed[name] = array
            continue
        base = name.removesuffix(".weight")
        packed[name], packed[f"{base}.scales"], packed[f"{base}.biases"] = parts = mx.quantize(
            array, 32, 8
        )
        plain[name] = mx.dequantize(*parts, 32, 8)
    models = [
        loaded(tmp_path / "packed", config, packed),
        loaded(tmp_path / "plain", own.config, plain),
    ]
    assert [isinstance(model.mtp.joint, nn.QuantizedLinear) for model in models] == [True, False]
    states = models[1].with_states(TOKENS, make_prompt_cache(models[1]))[1]
    made = [drafter_of(model)(TOKENS[:, 1:], states[:, :-1], [KVCache()])[1] for model in models]
    assert same(*made)


def test_norms_of_mixed_origin(tmp_path: Path) -> None:
    """Some converters leave the norms of a head as they were published, but for the last one."""
    own = OwnHead("qwen3_5")
    weights = own.converted()
    published = own.published()
    for name in weights:
        short = name.removeprefix("language_model.")
        if "mtp." in name and weights[name].ndim == 1 and short != "mtp.norm.weight":
            weights[name] = published[short]
    mixed = loaded(tmp_path / "mixed", own.config, weights)
    whole = loaded(tmp_path / "whole", own.config, own.converted())
    for name, item in tree_flatten(mixed.mtp.parameters()):
        assert same(item, dict(tree_flatten(whole.mtp.parameters()))[name], 1e-6)


@pytest.mark.parametrize("kind", CONFIGS)
def test_models_without_their_heads(kind: str, tmp_path: Path) -> None:
    own = OwnHead(kind)
    folder = write(tmp_path, own.config, own.converted())
    model = load_weights(folder)[0]
    assert HeadDrafter.of(model, 3) is None
    assert mx.array_equal(model(TOKENS), own.model(TOKENS))


@pytest.mark.parametrize("missing", ["self_attn.o_proj.weight", "norm.weight"])
def test_an_incomplete_head_is_none(missing: str, tmp_path: Path) -> None:
    own = OwnHead("glm4_moe")
    weights = own.converted()
    for name in list(weights):
        if name.startswith(f"model.layers.{LAYERS}.") and name.endswith(missing):
            del weights[name]
    assert HeadDrafter.of(loaded(tmp_path, own.config, weights), 3) is None


def test_a_head_of_another_shape_is_none(tmp_path: Path) -> None:
    own = OwnHead("qwen3_5")
    weights = own.converted()
    weights["language_model.mtp.fc.weight"] = mx.zeros((64, 64))
    assert HeadDrafter.of(loaded(tmp_path, own.config, weights), 3) is None
