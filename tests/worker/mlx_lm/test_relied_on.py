"""All that is relied on of mlx-lm, mlx-vlm, mlx-embeddings and transformers beyond their promises.

Each test says what it is; where it is gone, the failure names it. `make upstream` runs this with
the newest versions of these libraries. The rest of this folder tests what is made of it.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm import tokenizer_utils, utils
from mlx_lm.models import base
from mlx_lm.models import cache as caches

from protocol.encoders import MLX_VLMS
from tests.support import shapes

# The package has a function of the same name.
generate: Any = importlib.import_module("mlx_lm.generate")


class Relied(NamedTuple):
    """A module's name, with its attributes, that is there and takes these arguments."""

    module: str
    name: str
    why: str
    arguments: tuple[str, ...] = ()


_GENERATE = "mlx_lm.generate"
_CACHES = "mlx_lm.models.cache"
_BATCH = "batches of our own classes tell which rows are sampled"
_KINDS = "the kind of a cache says how it grows and whether it can be cut"
_VLM_INPUTS = "pictures and text become arrays"
RELIED = (
    Relied(
        _GENERATE,
        "BatchGenerator",
        "rows decode together",
        ("sampler", "completion_batch_size", "prefill_batch_size"),
    ),
    Relied(
        _GENERATE,
        "BatchGenerator.insert_segments",
        "a prompt is computed in segments",
        ("segments", "max_tokens", "caches", "all_tokens", "logits_processors", "stop_sequences"),
    ),
    Relied(_GENERATE, "BatchGenerator.stats", "a chunk's tokens and time are measured"),
    Relied(_GENERATE, "BatchGenerator.remove", "rows are put aside", ("uids",)),
    Relied(_GENERATE, "BatchGenerator.close", "a batch lets go of what it holds"),
    Relied(_GENERATE, "PromptProcessingBatch.empty", _BATCH, ("model", "fallback_sampler")),
    Relied(_GENERATE, "PromptProcessingBatch.generate", _BATCH, ("tokens",)),
    Relied(_GENERATE, "generation_stream", "work is done in mlx-lm's order"),
    Relied(
        _GENERATE,
        "generate_step",
        "one sequence decodes alone",
        ("max_tokens", "sampler", "logits_processors", "prompt_cache"),
    ),
    Relied(_GENERATE, "TextStateMachine", "stop sequences are found", ("transitions",)),
    Relied(_GENERATE, "TextStateMachine.flush", "what was held back is given out", ("state",)),
    Relied(_CACHES, "RotatingKVCache", _KINDS, ("max_size", "keep")),
    *(
        Relied(_CACHES, name, _KINDS)
        for name in (
            "ArraysCache",
            "BatchKVCache",
            "CacheList",
            "ChunkedKVCache",
            "ConcatenateKVCache",
            "KVCache",
        )
    ),
    Relied("mlx_lm.utils", "_get_classes", "an architecture is told by its files", ("config",)),
    Relied(
        "mlx_lm.utils",
        "load_model",
        "weights are read in slices",
        ("lazy", "trust_remote_code", "get_model_classes"),
    ),
    Relied("mlx_lm.utils", "load_tokenizer", "no code of files is run", ("eos_token_ids",)),
    Relied("mlx_lm.utils", "load_adapters", "an adapter is put on top", ("model", "adapter_path")),
    Relied("mlx_lm.models.llama", "Model.shard", "a model is split by tensors", ("group",)),
    Relied(
        "mlx_lm.models.pipeline", "PipelineMixin.pipeline", "a model is split by layers", ("group",)
    ),
    Relied("mlx_lm.models.gemma3_text", "Gemma3Model.__call__", "an encoder is made of it"),
    Relied("mlx_lm.models.gemma3_text", "ModelArgs", "an encoder", ("sliding_window_pattern",)),
    *(
        Relied(f"mlx_lm.tool_parsers.{name}", "parse_tool_call", "its calls are known by its name")
        for name in (
            *("function_gemma", "gemma4", "glm47", "json_tools", "kimi_k2", "kimi_k3", "laguna"),
            *("longcat", "minicpm5", "minimax_m2", "mistral", "muse_spark", "pythonic"),
            "qwen3_coder",
        )
    ),
    Relied(
        "mlx_lm.tokenizer_utils",
        "NaiveStreamingDetokenizer",
        "it takes each line for a text of its own, and is replaced",
    ),
    Relied(
        "mlx_vlm.generate.common",
        "_chunked_prefill_enabled",
        "some prompts must be one call",
        ("model", "input_ids", "inputs_embeds", "prefill_kwargs"),
    ),
    Relied("mlx_vlm.prompt_utils", "MODEL_CONFIG", "its keys are the kinds of messages"),
    Relied(
        "mlx_vlm.prompt_utils",
        "get_message_json",
        "messages show their pictures",
        ("role", "skip_image_token", "num_images"),
    ),
    Relied(
        "mlx_vlm.utils",
        "prepare_inputs",
        _VLM_INPUTS,
        ("processor", "images", "prompts", "image_token_index", "add_special_tokens"),
    ),
    Relied("mlx_vlm.utils", "should_add_special_tokens", _VLM_INPUTS),
    Relied("mlx_vlm.utils", "get_model_type", "a model that takes pictures is told by its files"),
    Relied("mlx_vlm.utils", "load_processor", "no code of files is run", ("add_detokenizer",)),
    Relied("mlx_vlm.utils", "load_model", "its weights are read in slices", ("lazy",)),
    Relied("mlx_vlm.models.cache", "make_prompt_cache", "its caches are like mlx-lm's"),
    Relied("mlx_vlm.models.cache", "ArraysCache.merge", "its states are in mlx-lm's batches"),
    Relied("mlx_vlm.models.cache", "ArraysCache.finalize", "its states are in mlx-lm's batches"),
    Relied(
        "mlx_vlm.models.qwen2_vl.language",
        "LanguageModel.get_rope_index",
        "positions are kept in attributes that are set for each call",
    ),
    *(
        Relied(f"mlx_vlm.models.{encoder}", name, "it gives the states beside its vectors")
        for encoder in sorted(MLX_VLMS)
        for name in ("Model", "Model.sanitize", "ModelConfig.from_dict")
    ),
    Relied("mlx_embeddings.models.bert", "Model", "its layers are called"),
    Relied("mlx_embeddings.models.bert", "ModelArgs", "its layers are called"),
    Relied("mlx_embeddings.models.xlm_roberta", "Model", "its layers are called"),
    Relied(
        "mlx_embeddings.models.modernbert",
        "ModernBertModel._update_attention_mask",
        "its masks are made finite",
        ("attention_mask",),
    ),
    Relied("mlx_embeddings.models.modernbert", "ModernBertPredictionHead", "texts are scored"),
    Relied(
        "transformers.utils.import_utils",
        "define_import_structure",
        "what it finds is kept from import to import",
        ("module_path", "prefix"),
    ),
    Relied(
        "transformers",
        "PreTrainedTokenizerBase.apply_chat_template",
        "what templates are called with is no argument of theirs",
        ("tools", "add_generation_prompt", "tokenize", "return_dict"),
    ),
    Relied("transformers", "PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES", "the same"),
    Relied("transformers.models.auto.tokenization_auto", "AutoTokenizer", "the slow import"),
)


def missing(relied: Relied) -> str:
    """What of it is gone; empty if it is all there."""
    at: Any
    try:
        at = importlib.import_module(relied.module)
    except ModuleNotFoundError as error:
        return f"{relied.module} ({error})"
    for part in relied.name.split("."):
        if not hasattr(at, part):
            return f"{relied.module}.{relied.name}"
        at = getattr(at, part)
    known = inspect.signature(at).parameters if relied.arguments else {}
    gone = [argument for argument in relied.arguments if argument not in known]
    return f"{relied.module}.{relied.name}({', '.join(gone)})" if gone else ""


@pytest.mark.parametrize("relied", RELIED, ids=lambda item: f"{item.module}.{item.name}")
def test_it_is_there(relied: Relied) -> None:
    gone = missing(relied)
    assert not gone, f"{gone} is gone, by which {relied.why}."


def test_missing_names_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    relied = {relied.name: relied for relied in RELIED}
    monkeypatch.delattr(utils, "_get_classes")
    assert missing(relied["_get_classes"]) == "mlx_lm.utils._get_classes"
    monkeypatch.setattr(generate, "generate_step", lambda prompt, sampler, max_tokens: None)
    gone = "mlx_lm.generate.generate_step(logits_processors, prompt_cache)"
    assert missing(relied["generate_step"]) == gone
    other = relied["BatchGenerator"]._replace(module="mlx_lm.batches")
    assert missing(other) == "mlx_lm.batches (No module named 'mlx_lm.batches')"


# mlx-lm's batches


class Counting:
    """A model and a sampler that write down when they are called. Token 7 is always the next."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.layers: list[Any] = [None]

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        self.calls.append(f"model {tokens.shape[0]}x{tokens.shape[1]}")
        entries = mx.zeros((tokens.shape[0], 1, tokens.shape[1], 2))
        for item in cache:
            item.update_and_fetch(entries, entries)
        return mx.zeros((*tokens.shape, 8))

    def make_cache(self) -> list[Any]:
        return [caches.KVCache()]

    def sample(self, logprobs: mx.array) -> mx.array:
        self.calls.append(f"sampler {logprobs.shape[0]}")
        return mx.full((logprobs.shape[0],), 7, dtype=mx.uint32)


def test_batches_are_private_attributes_that_a_generator_uses_as_long_as_it_lives() -> None:
    model = Counting()
    generator = generate.BatchGenerator(model, sampler=model.sample)
    held = generator._prompt_batch, generator._generation_batch
    assert type(held[0]) is generate.PromptProcessingBatch
    assert type(held[1]) is generate.GenerationBatch
    generator.insert([[1, 2, 3], [4]], max_tokens=[2, 3])
    seen: set[int] = set()
    for _ in range(6):
        generator.next()
        seen |= {*held[0].uids, *held[1].uids}
    assert (generator._prompt_batch, generator._generation_batch) == held
    assert seen == {0, 1}, "uids of BatchGenerator's batches"
    generator.close()


def test_a_generator_numbers_rows_from_a_private_count() -> None:
    model = Counting()
    generator = generate.BatchGenerator(model, sampler=model.sample)
    generator._uid_count = 70
    assert generator.insert([[1]], max_tokens=[1]) == [70]
    generator.close()


@pytest.mark.parametrize("quantized", [False, True])
def test_attention_is_looked_up_with_each_call(
    monkeypatch: pytest.MonkeyPatch, *, quantized: bool
) -> None:
    """And it hands keys, values and masks on as they are."""
    taken: list[Any] = []

    def attend(queries: Any, keys: Any, values: Any, *, scale: float, mask: Any, **_: Any) -> Any:
        taken.extend((queries, keys, values, scale, mask))

    if quantized:
        monkeypatch.setattr(base, "quantized_scaled_dot_product_attention", attend)
    else:
        monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", attend)
    cache = caches.QuantizedKVCache() if quantized else caches.KVCache()
    given = [object() for _ in range(4)]
    base.scaled_dot_product_attention(*given[:3], cache, scale=0.5, mask=given[3])
    assert taken == [*given[:3], 0.5, given[3]]


def test_a_split_batch_is_of_the_same_class() -> None:
    class Prompts(generate.PromptProcessingBatch):  # type: ignore[misc]
        generated = 0

        def generate(self, tokens: Any) -> Any:
            Prompts.generated += 1
            return super().generate(tokens)

    model = Counting()
    generator = generate.BatchGenerator(model, sampler=model.sample)
    generator._prompt_batch = Prompts.empty(model, model.sample)
    generator.insert([[1], [2, 3, 4]], max_tokens=[2, 2])
    generator.next()
    assert Prompts.generated == 1, "PromptProcessingBatch.split, and generate of what it gives"
    generator.close()


def test_a_chunk_is_as_long_as_the_generator_says_then() -> None:
    model = Counting()
    generator = generate.BatchGenerator(model, sampler=model.sample)
    generator.insert_segments([[[1] * 5, [2] * 4]], max_tokens=[1])
    progress = []
    for chunk in (2, 100, 100):
        generator.prefill_step_size = chunk
        with generator.stats() as stats:
            prompts, _ = generator.next()
        (one,) = prompts
        progress.append((one.progress, one.end_of_segment, one.end_of_prompt, stats.prompt_tokens))
    assert progress == [
        ((2, 9), False, False, 2),
        ((5, 9), True, False, 3),
        ((8, 9), True, False, 3),
    ], "prefill_step_size, PromptProcessingBatch.Response, stats"
    assert stats.prompt_time >= 0.0
    generator.close()


def test_the_wired_limit_is_set_by_mlxs_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the name can be given to a function that does nothing."""
    calls: list[int] = []
    monkeypatch.setattr(mx, "set_wired_limit", lambda size: calls.append(size) or 5)
    size = {"max_recommended_working_set_size": 9}
    monkeypatch.setattr(mx, "device_info", lambda *_: size)
    generate.BatchGenerator(Counting()).close()
    assert calls == [9, 5], "maybe_set_recommended_wired_limit"


# mlx-lm's caches


def _filled(cache: Any, tokens: int = 3, width: int = 64) -> Any:
    entries = mx.arange(tokens * width, dtype=mx.float32).reshape(1, 1, tokens, width)
    cache.update_and_fetch(entries, entries)
    return cache


@pytest.mark.parametrize("cache", [caches.KVCache(), caches.ConcatenateKVCache()])
def test_tokens_lie_on_the_last_axis_but_one(cache: Any) -> None:
    _filled(cache)
    assert cache.keys.shape[:2] == (1, 1), "keys"
    assert cache.keys[0, 0, 2, 0].item() == 128.0, "keys"
    assert cache.values[0, 0, 1, 1].item() == 65.0, "values"
    assert cache.offset == 3
    assert not cache.empty()


def test_attention_takes_quantized_keys_and_values_of_caches_with_bits() -> None:
    """With a mask for each row, and with several heads for the same keys."""

    class Cache:
        group_size, bits = 64, 8

    queries, keys, values = (mx.random.normal((2, heads, 3, 64)) for heads in (4, 2, 2))
    mask = mx.array([[True, True, False], [False, True, True]])[:, None, None]
    packed = [mx.quantize(array, group_size=64, bits=8) for array in (keys, values)]
    plain = [mx.dequantize(*pair, group_size=64, bits=8) for pair in packed]
    found, expected = (
        base.scaled_dot_product_attention(queries * 1.0, *values, cache, 0.125, mask)
        for values, cache in ((packed, Cache()), (plain, None))
    )
    assert mx.allclose(found, expected, atol=1e-5).item(), "scaled_dot_product_attention"


def test_rows_of_a_batch_are_padded_on_the_left() -> None:
    merged = caches.KVCache.merge([_filled(caches.KVCache(), 1), _filled(caches.KVCache(), 3)])
    assert type(merged) is caches.BatchKVCache
    assert merged.left_padding.tolist() == [2, 0]
    assert merged.keys[0, 0, 2, 1].item() == 1.0
    assert merged.extract(0).keys[0, 0, 0, 1].item() == 1.0


def test_a_state_can_be_taken_out_and_put_back() -> None:
    cache = _filled(caches.RotatingKVCache(max_size=4, keep=1))
    other = caches.RotatingKVCache(max_size=4, keep=1)
    other.state = cache.state
    assert mx.array_equal(other.keys, cache.keys).item(), "RotatingKVCache.state"
    assert cache.max_size == 4
    assert caches.ChunkedKVCache(5).chunk_size == 5
    assert caches.CacheList(cache, other).caches == (cache, other)
    arrays, same = caches.ArraysCache(1), caches.ArraysCache(1)
    arrays[0] = mx.ones((1, 2))
    same.state = arrays.extract(0).state
    assert same[0].tolist() == [[1.0, 1.0]], "ArraysCache.state"


# mlx-lm's loop over one sequence


def test_processors_see_what_mlx_lm_was_given_itself() -> None:
    seen: list[list[int]] = []

    def process(tokens: mx.array, logits: mx.array) -> mx.array:
        seen.append(tokens.tolist())  # type: ignore[arg-type]
        return logits

    model = Counting()
    steps = generate.generate_step(
        mx.array([3]),
        model,
        max_tokens=2,
        sampler=model.sample,
        logits_processors=[process],
        prompt_cache=model.make_cache(),
    )
    assert [int(token) for token, _ in steps] == [7, 7]
    assert seen[:2] == [[3], [3, 7]], "generate_step"


# mlx-lm's models


def test_weights_are_loaded_by_mlxs_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is loaded can be noted."""
    loaded: list[str] = []
    load = mx.load
    monkeypatch.setattr(mx, "load", lambda path, *of: loaded.append(path) or load(path, *of))
    model, config = utils.load_model(shapes.DEMO, lazy=True)
    assert loaded, "load_model"
    assert config["model_type"] == "qwen3"
    assert isinstance(model, nn.Module)


def test_layers_add_up_by_mlxs_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that collective operations in a prompt can be evaluated by themselves."""
    from mlx.nn.layers import distributed

    calls: list[Any] = []
    monkeypatch.setattr(mx.distributed, "all_sum", lambda x, group=None: calls.append(group) or x)
    layer = distributed.ShardedToAllLinear.from_linear(nn.Linear(4, 4), group=_Alone())
    layer(mx.ones((1, 4)))
    assert len(calls) == 1, "ShardedToAllLinear"


class _Alone:
    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


def test_sources_say_which_models_can_be_split() -> None:
    from worker.mlx_lm.models import splittable

    found = splittable()
    assert {"llama", "qwen3", "qwen3_moe"} <= set(found), "def shard( in mlx_lm/models/*.py"
    for text in found[:3]:
        assert hasattr(importlib.import_module(f"mlx_lm.models.{text}").Model, "shard")


def test_parts_of_a_model_have_these_names() -> None:
    model, _ = utils.load_model(shapes.DEMO, lazy=True)
    assert callable(model.model)
    assert model.model.norm.weight.ndim == 1
    assert hasattr(model, "lm_head") or hasattr(model.model.embed_tokens, "as_linear")


def test_gemma3_has_the_parts_that_an_encoder_is_made_of() -> None:
    from mlx_lm.models import gemma3_text

    arguments = gemma3_text.ModelArgs(
        model_type="gemma3_text",
        hidden_size=8,
        num_hidden_layers=1,
        intermediate_size=8,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=4,
    )
    assert arguments.sliding_window > 0
    model = gemma3_text.Gemma3Model(arguments)
    (layer,) = model.layers
    states = layer(model.embed_tokens(mx.array([[1, 2]])), mx.zeros((1, 1, 2, 2)), None)
    assert model.norm(states).shape == (1, 2, 8), "Gemma3Model.layers, embed_tokens, norm"


# mlx-lm's texts


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return utils.load_tokenizer(shapes.DEMO, {"trust_remote_code": False}, eos_token_ids=None)


@pytest.mark.parametrize(
    "name",
    [
        *("_tokenizer", "_chat_template", "detokenizer", "has_chat_template", "chat_template"),
        *("has_tool_calling", "tool_parser", "tool_call_start", "tool_call_end"),
        *("has_thinking", "think_start", "think_end", "eos_token_ids", "get_vocab"),
        *("structural_markers", "response_transitions", "response_initial_state"),
    ],
)
def test_a_wrapper_has(name: str, tokenizer: Any) -> None:
    assert isinstance(tokenizer, tokenizer_utils.TokenizerWrapper)
    assert hasattr(tokenizer, name), f"TokenizerWrapper.{name} is gone."


def test_each_answer_has_a_detokenizer_of_its_own(tokenizer: Any) -> None:
    first, second = tokenizer.detokenizer, tokenizer.detokenizer
    assert first is not second
    for token_id in tokenizer.encode("Hello there", add_special_tokens=False):
        first.add_token(token_id)
    first.finalize()
    assert first.last_segment == "Hello there"
    assert second.last_segment == ""


def test_a_parser_is_known_by_the_name_of_its_module() -> None:
    from mlx_lm.tool_parsers import json_tools

    assert json_tools.parse_tool_call.__module__ == "mlx_lm.tool_parsers.json_tools"


def test_a_search_for_stop_sequences_holds_back_what_may_be_one() -> None:
    machine = generate.TextStateMachine({"normal": [("stop", None)]})
    state, before, after = generate.TextStateMachine.step(machine.make_state(), "I st")
    assert (before, state[-1], after) == ("I ", "st", "normal"), "TextStateMachine.step"
    held, rest, _ = generate.TextStateMachine.flush(state)
    assert (rest, held[-1]) == ("st", "")
    state, before, after = generate.TextStateMachine.step(state, "op it")
    assert (before, state[-1], after) == ("", " it", None)


# The others


def test_transformers_asks_for_the_structure_of_its_folder_of_models() -> None:
    module = importlib.import_module("transformers.utils.import_utils")
    models = Path(inspect.getfile(module)).parent.parent / "models"
    assert (models / "__init__.py").is_file()
    assert "define_import_structure(" in (models / "__init__.py").read_text("utf-8")


def test_a_tokenizer_describes_its_decoder_as_its_file_does(tokenizer: Any) -> None:
    from worker.transformers import decoder_of

    assert decoder_of(tokenizer).get("type"), "backend_tokenizer.decoder.__getstate__()"


def test_a_model_with_eyes_keeps_positions_in_its_language_model() -> None:
    from worker.mlx_vlm import _POSITIONS

    source = inspect.getsource(importlib.import_module("mlx_vlm.models.qwen2_vl.language"))
    gone = [position for position in _POSITIONS if f"self.{position} =" not in source]
    assert not gone, f"LanguageModel.{gone} is gone."


def test_mlx_vlms_caches_are_mlx_lms_where_they_have_their_names() -> None:
    theirs = importlib.import_module("mlx_vlm.models.cache")
    assert theirs.KVCache().empty()
    rotating = theirs.RotatingKVCache(max_size=4, keep=1)
    assert (rotating.max_size, rotating.keep) == (4, 1)


def test_encoders_have_the_parts_that_are_called() -> None:
    lfm2 = importlib.import_module("mlx_vlm.models.lfm2.language")
    source = inspect.getsource(lfm2)
    for name in ("is_attention_layer", "operator_norm", "conv", "feed_forward", "ffn_norm"):
        assert f"self.{name} =" in source, f"mlx_vlm.models.lfm2.language: {name}"
    assert "self.causal =" in source
    bert = importlib.import_module("mlx_embeddings.models.bert")
    source = inspect.getsource(bert.Model)
    gone = [text for text in ("embeddings", "encoder", "config") if f"self.{text} =" not in source]
    assert not gone, f"mlx_embeddings.models.bert.Model.{gone} is gone."
    modern = importlib.import_module("mlx_embeddings.models.modernbert")
    source = inspect.getsource(modern)
    for name in ("self.layers =", "self.mlp =", "self.act =", "self.final_norm ="):
        assert name in source, f"mlx_embeddings.models.modernbert: {name}"
    assert '"last_hidden_state"' in source
