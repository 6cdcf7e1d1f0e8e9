"""A model that copies the text it was shown, with the changes it was told, for benchmarks and tests
of guesses. Its weights are set by hand; nothing is trained.

- An answer begins like the last result of a tool; without one, like the last user's message. It
  ends where that ends.
- Where the last tokens stand in several places, the copy goes on as after the last of these places.
  So text of which a dozen tokens stand twice can send the copy to the wrong place.
- `</change>` is never copied. So lines between `<change>` and `</change>` change the copy of a file
  that was shown before them, as the lines of a patch do. `CONTEXT_LINES` lines of the file before
  the new ones and after them are enough. The last of them isn't blank, and `</change>` follows it
  without a line break.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.induction import CONTEXT, THETA, InductionHead, Marks, Sizes

CONTEXT_LINES: Final = 4
COPYING: Final = {
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "intermediate_size": 32,
    "num_attention_heads": 12,
    "num_key_value_heads": 1,
    "head_dim": 64,
}
EIGHT_BILLION: Final = {
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}
# A mixture of experts, of which eight compute each token.
THIRTY_BILLION: Final = {
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
_MIXTURE: Final = {"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
_TOKENS: Final = 4096
_SPECIAL: Final = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "</change>")
_END, _, _USER, _ASSISTANT, _TOOL, _CHANGED = range(len(_SPECIAL))
_TEMPLATE: Final = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    "<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# As many as the largest model compares.
_BEGINNING: Final = 16


def make_copying_model(folder: Path, sizes: dict[str, int] = COPYING, bits: int = 32) -> Path:
    """Write a model that copies into `folder`, for mlx-lm to load. `sizes` are those of a Qwen3
    configuration with two layers at least, or of a Qwen3 mixture, whose experts add zero. Weights
    are float32, bfloat16 (16 bits) or, with heads of 128 dimensions, quantized to 8 or 4 bits.

    Raises:
        ValueError: the hidden size is too small.
    """
    # MLX only where a model is built: the process that measures stays without it otherwise.
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten, tree_map

    mixed = "num_experts" in sizes
    architecture = "qwen3_moe" if mixed else "qwen3"
    config: dict[str, Any] = {
        "vocab_size": _TOKENS,
        **sizes,
        **(_MIXTURE if mixed else {}),
        "model_type": architecture,
        "rms_norm_eps": 1e-6,
        "rope_theta": THETA,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        "eos_token_id": _END,
    }
    module = importlib.import_module(f"mlx_lm.models.{architecture}")
    model = module.Model(module.ModelArgs.from_dict(config))
    kind = mx.float32 if bits == 32 else mx.bfloat16
    model.update(tree_map(lambda item: mx.zeros(item.shape, kind), model.parameters()))
    weights = {name: mx.array(weight).astype(kind) for name, weight in _weights(config).items()}
    if mixed:
        # Without it each token would go to the same experts, and few weights would be read.
        shape = sizes["num_experts"], sizes["hidden_size"]
        keys = mx.random.split(mx.random.key(0), sizes["num_hidden_layers"])
        for number in range(sizes["num_hidden_layers"]):
            router = mx.random.normal(shape, kind, key=keys[number])
            weights[f"model.layers.{number}.mlp.gate.weight"] = router
    model.load_weights(list(weights.items()), strict=False)
    if bits < 16:
        nn.quantize(model, group_size=64, bits=bits)
        config["quantization"] = {"group_size": 64, "bits": bits}
    folder.mkdir(parents=True)
    parameters = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), parameters, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "chat_template.jinja").write_text(_TEMPLATE, "utf-8")
    _tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _SPECIAL[_END]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


def copying_prompt(tokens: int, seed: int = 0) -> list[int]:
    """A prompt of `tokens` + 16 tokens: random ones, and the first 16 of them again. The greedy
    answer of a model that copies begins with the last `tokens` tokens of the prompt.
    """
    draw = random.Random(seed)
    shown = [draw.randrange(len(_SPECIAL), _TOKENS) for _ in range(tokens)]
    return shown + shown[:_BEGINNING]


def _weights(config: dict[str, Any]) -> dict[str, Any]:
    induction = InductionHead(
        Sizes(
            config["vocab_size"],
            config["hidden_size"],
            config["num_attention_heads"],
            config["num_key_value_heads"],
            config["head_dim"],
        ),
        Marks(answer=_ASSISTANT, result=_TOOL, question=_USER, barrier=_CHANGED),
    )
    norm, head = induction.head()
    made = {
        "model.embed_tokens.weight": induction.embedding(),
        "model.norm.weight": norm,
        "lm_head.weight": head,
    }
    for number, layer in enumerate((induction.looking_back(), induction.finding())):
        made |= {f"model.layers.{number}.{name}": ndarray for name, ndarray in layer.items()}
    return made


def _tokenizer() -> Tokenizer:
    """A tokenizer for source text, trained with Python's own, which stays the same."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_TOKENS,
        special_tokens=[AddedToken(text, special=text != "</change>") for text in _SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(asyncio.__file__).parent.glob("*.py"))
    tokenizer.train_from_iterator((source.read_text("utf-8") for source in sources), trainer)
    return tokenizer
