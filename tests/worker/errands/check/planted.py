"""Models with one planted fault each, made of sound ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

from tests.support.shapes import DEMO

Weights = dict[str, mx.array]


def linked(source: Path, folder: Path) -> Path:
    """The model of `source` under another name: links to its files."""
    for path in source.rglob("*"):
        if path.is_file():
            link = folder / path.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    return folder


def write(path: Path, text: str) -> None:
    """Replace a link, or a file, by another file."""
    path.unlink(missing_ok=True)
    path.write_text(text)


def set_in(folder: Path, name: str, **values: Any) -> None:
    content = json.loads((folder / name).read_text())
    write(folder / name, json.dumps(content | values))


def read_weights(folder: Path) -> Weights:
    return dict(mx.load(str(folder / "model.safetensors")))  # type: ignore[arg-type]


def save(path: Path, weights: Weights) -> None:
    path.unlink(missing_ok=True)
    mx.save_safetensors(str(path), weights, {"format": "mlx"})


def change(folder: Path, changed: Callable[[Weights], None]) -> None:
    weights = read_weights(folder)
    changed(weights)
    save(folder / "model.safetensors", weights)


def shards(folder: Path, doubled: int = 0) -> None:
    """Split the weights into two shards with an index; `doubled` tensors are in both."""
    weights = read_weights(folder)
    names = sorted(weights)
    half = len(names) // 2
    parts = names[:half], names[half - doubled :]
    placed = {}
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05}-of-00002.safetensors"
        save(folder / name, {tensor: weights[tensor] for tensor in part})
        placed |= dict.fromkeys(part, name)
    (folder / "model.safetensors").unlink()
    write(folder / "model.safetensors.index.json", json.dumps({"weight_map": placed}))


# Files.


def missing_shard(folder: Path) -> None:
    shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def missing_tensor(folder: Path) -> None:
    shards(folder)
    path = folder / "model-00002-of-00002.safetensors"
    weights = dict(mx.load(str(path)))  # type: ignore[arg-type]
    weights.pop(max(weights))
    save(path, weights)


def doubled_tensor(folder: Path) -> None:
    shards(folder, doubled=3)


def cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()[:-1000]
    path.unlink()
    path.write_bytes(content)


def unreadable_settings(folder: Path) -> None:
    write(folder / "generation_config.json", "{")


def other_shape(folder: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    change(folder, lambda weights: weights.update({name: weights[name].T}))


def swapped_shapes(folder: Path) -> None:
    change(folder, lambda weights: swap(weights, 1, "self_attn.q_proj", "self_attn.k_proj"))


def swap(weights: Weights, layer: int, one: str, two: str) -> None:
    first, second = (f"model.layers.{layer}.{name}.weight" for name in (one, two))
    weights[first], weights[second] = weights[second], weights[first]


def layer_count(folder: Path) -> None:
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    set_in(folder, "config.json", num_hidden_layers=layers - 1)


def no_head(folder: Path) -> None:
    set_in(folder, "config.json", tie_word_embeddings=False)


def other_content(folder: Path) -> None:
    """As the hub's cache has it: a link to a blob, named by the sum of what it should be."""
    path = folder / "config.json"
    content = path.read_bytes()
    digest = hashlib.sha1(b"blob %d\0" % len(content), usedforsecurity=False).hexdigest()
    blob = folder.parent / digest
    blob.write_bytes(content.replace(b'"num_hidden_layers"', b' "num_hidden_layers"'))
    path.unlink()
    path.symlink_to(blob)


# Tokenizer.


def wrong_end(folder: Path) -> None:
    set_in(folder, "generation_config.json", eos_token_id=0)
    set_in(folder, "tokenizer_config.json", eos_token="<|endoftext|>")


def endless_turns(folder: Path) -> None:
    template = (folder / "chat_template.jinja").read_text()
    ending = "message['content'] + '<|im_end|>'"
    assert ending in template
    write(folder / "chat_template.jinja", template.replace(ending, "message['content']"))


def ordinary_end(folder: Path) -> None:
    set_in(folder, "generation_config.json", eos_token_id=[2, 260])


def foreign_tokenizer(folder: Path) -> None:
    write(folder / "tokenizer.json", (DEMO / "tokenizer.json").read_text())
    set_in(folder, "config.json", vocab_size=100)


def lower_case(folder: Path) -> None:
    set_in(folder, "tokenizer.json", normalizer={"type": "Lowercase"})


def split_special(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["content"] != "<|im_end|>"
    ]
    vocabulary = content["model"]["vocab"]
    vocabulary.pop("<|im_end|>", None)
    write(folder / "tokenizer.json", json.dumps(content))
    set_in(folder, "tokenizer_config.json", eos_token="<|endoftext|>", pad_token="<|endoftext|>")


# Template.


def _template(folder: Path, changed: Callable[[str], str]) -> None:
    path = folder / "chat_template.jinja"
    write(path, changed(path.read_text()))


def dropped_tools(folder: Path) -> None:
    _template(folder, lambda text: text.replace("{%- if tools %}", "{%- if false %}"))


def counted_turns(folder: Path) -> None:
    _template(folder, lambda text: "{{ messages | length }} messages.\n" + text)


def last_message_alone(folder: Path) -> None:
    _template(folder, lambda text: "{% set messages = messages[-1:] %}" + text)


def last_message_written(folder: Path) -> None:
    loop = "{% for message in messages %}"

    def changed(text: str) -> str:
        assert loop in text
        return text.replace(loop, "{% for message in messages[-1:] %}")

    _template(folder, changed)


def other_opening(folder: Path) -> None:
    begin = "{{ '<|im_start|>assistant"
    _template(folder, lambda text: text.replace(begin, "{{ '<|im_start|>bot"))


def broken_template(folder: Path) -> None:
    _template(folder, lambda text: text + "{{ raise_exception('no') }}")


def clock(folder: Path) -> None:
    _template(folder, lambda text: "{{ strftime_now('%H:%M:%S') }}\n" + text)


# Weights.


def _scale(folder: Path, name: str, factor: float) -> None:
    change(folder, lambda weights: weights.update({name: weights[name] * factor}))


def doubled_norm(folder: Path) -> None:
    _scale(folder, "model.layers.9.post_attention_layernorm.weight", 2)


def shrunk_matrix(folder: Path) -> None:
    _scale(folder, "model.layers.12.mlp.down_proj.weight", 0.25)


def doubled_first_norm(folder: Path) -> None:
    _scale(folder, "model.layers.0.input_layernorm.weight", 2)


def doubled_encoder_norm(folder: Path) -> None:
    _scale(folder, "encoder.layer.3.output.LayerNorm.weight", 2)


def not_finite(folder: Path) -> None:
    def spoil(weights: Weights) -> None:
        name = "model.layers.1.mlp.up_proj.weight"
        weights[name][3, 5] = float("nan")

    change(folder, spoil)


def wrong_base(folder: Path) -> None:
    base = json.loads((folder / "config.json").read_text())["rope_theta"]
    set_in(folder, "config.json", rope_theta=base / 10)


def foreign_layer(folder: Path) -> None:
    """A layer in the basis of another training: the dimensions of its states are in another order,
    and so it is of the same sizes and of as likely numbers.
    """

    def permute(weights: Weights) -> None:
        width = weights["model.norm.weight"].shape[0]
        mx.random.seed(3)
        order = mx.random.permutation(width)
        for name, array in weights.items():
            if name.startswith("model.layers.11."):
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
                axis = 0 if writes or array.ndim == 1 else 1
                if array.shape[axis] == width and not name.endswith("bias"):
                    weights[name] = mx.take(array, order, axis=axis)

    change(folder, permute)


def untied_head(folder: Path) -> None:
    def add_head(weights: Weights) -> None:
        embeddings = weights["model.embed_tokens.weight"]
        weights["lm_head.weight"] = mx.random.normal(embeddings.shape) * 0.1

    change(folder, add_head)
    set_in(folder, "config.json", tie_word_embeddings=False)


def _randomize(folder: Path, part: str) -> None:
    def randomize(weights: Weights) -> None:
        for name, array in weights.items():
            if part in name and array.ndim == 2:
                weights[name] = mx.random.normal(array.shape) * mx.std(array)

    change(folder, randomize)


def random_weights(folder: Path) -> None:
    _randomize(folder, "")


def half_random(folder: Path) -> None:
    _randomize(folder, "mlp.up_proj")


def swapped_gates(folder: Path) -> None:
    def swap_all(weights: Weights) -> None:
        layers = sum(name.endswith("gate_proj.weight") for name in weights)
        for layer in range(layers):
            swap(weights, layer, "mlp.gate_proj", "mlp.up_proj")

    change(folder, swap_all)


def interleaved_rows(folder: Path) -> None:
    """The rows of queries and keys in llama's own order, as a conversion leaves them."""
    config = json.loads((folder / "config.json").read_text())

    def interleave(weights: Weights) -> None:
        for name, array in weights.items():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                key = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
                heads, (rows, width) = config[key], array.shape
                parts = array.reshape(heads, 2, rows // heads // 2, width)
                weights[name] = parts.transpose(0, 2, 1, 3).reshape(rows, width)

    change(folder, interleave)


# Vectors.


def _pool(folder: Path, mode: str) -> None:
    set_in(
        folder,
        "1_Pooling/config.json",
        pooling_mode_mean_tokens=False,
        **{f"pooling_mode_{mode}": True},
    )


def first_token_pooled(folder: Path) -> None:
    _pool(folder, "cls_token")


def no_pooling(folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").unlink()


def unknown_module(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "3_Sparse", "type": "models.SpladePooling"})
    write(folder / "modules.json", json.dumps(modules))


def swapped_encoder_layer(folder: Path) -> None:
    def swap_both(weights: Weights) -> None:
        for part in ("weight", "bias"):
            one, two = (
                f"encoder.layer.2.attention.self.{name}.{part}" for name in ("query", "key")
            )
            weights[one], weights[two] = weights[two], weights[one]

    change(folder, swap_both)


def mean_of_a_decoder(folder: Path) -> None:
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
    ]
    write(folder / "modules.json", json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    write(folder / "1_Pooling" / "config.json", '{"pooling_mode_mean_tokens": true}')
