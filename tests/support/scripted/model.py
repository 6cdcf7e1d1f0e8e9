"""A model whose weights are set by hand: it walks through a script, an answer a step.

What it says next depends on two things. One is the last token: within an answer each token has the
next one. The other is how far the script has come, which its attention finds: each step but the
first has a mark, a word of the conversation, and of all marks so far that of the latest step
outweighs the others. A tool's name marks where a script begins, a word of each call the step after
it, be it in the answer, in the history or in the call's result. So it goes on wherever a
conversation stands, and whatever else a client writes into it.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

_HERE = Path(__file__).parent
_DOCUMENTS = _HERE.parents[2] / "docs"
TEMPLATES = ("plain", "strict")
_HEAD = 64
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# What may stand at the end of a prompt: a template begins an answer, opens what is thought, or
# closes it.
_BEGIN, _OPENED, _CLOSED = "assistant\n", "\n", "\n\n"


@dataclass(frozen=True)
class Step:
    """An answer: what it thinks, says and calls, once the `mark` was seen. The call of a step has
    the mark of the step after it.
    """

    thought: str
    text: str
    tool: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    mark: str = ""


def scripted_model(folder: Path, template: str, steps: Sequence[Step]) -> Path:
    """The first step is its answer as long as there was no mark."""
    tokenizer = _tokenizer()
    script = _Script(template, steps)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in script.tokens])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    weights = script.weights(tokenizer)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "chat_template.jinja").write_text((_HERE / f"{template}.jinja").read_text("utf-8"))
    hidden, words = weights["lm_head.weight"].shape[::-1]
    for name, settings in _settings(hidden, words).items():
        (folder / name).write_text(json.dumps(settings))
    mx.clear_cache()
    return folder


class _Script:
    def __init__(self, template: str, steps: Sequence[Step]) -> None:
        self._steps = len(steps)
        self._marks = {step.mark: number for number, step in enumerate(steps) if step.mark}
        # By a token and the step that the script has come to.
        self._next: dict[tuple[str, int], str] = {}
        for number, step in enumerate(steps):
            self._lay(number, _BEGIN, "<think>", _OPENED, *_chunks(f"{step.thought}\n"), "</think>")
            text = _chunks(step.text)
            self._lay(number, "</think>", _CLOSED, *text)
            if not step.tool:
                self._lay(number, text[-1], "<|im_end|>")
                continue
            mark = steps[number + 1].mark
            before, after = _call(step, template).split(mark)
            self._lay(number, text[-1], "<tool_call>", before, mark)
            self._lay(number + 1, mark, after, "</tool_call>", "<|im_end|>")
        laid = {text for (token, _), after in self._next.items() for text in (token, after)}
        self.tokens = sorted((laid | set(self._marks)).difference(_SPECIAL))

    def _lay(self, step: int, *tokens: str) -> None:
        for token, after in itertools.pairwise(tokens):
            if self._next.setdefault((token, step), after) != after:
                raise ValueError(f"In step {step} {token!r} goes on in two ways.")

    def weights(self, tokenizer: Tokenizer) -> dict[str, mx.array]:
        """Of a Llama with one layer and one head. A token's vector says which it is, in a dimension
        of its own; the attention adds how far the script has come.
        """
        words = tokenizer.get_vocab_size()
        places = {token: index for index, token in enumerate([*self.tokens, *_SPECIAL])}
        # One dimension is the same for all tokens.
        same, first_step = len(places), len(places) + 1
        hidden = 64 * math.ceil((first_step + self._steps) / 64)

        embedded = np.zeros((words, hidden), np.float32)
        embedded[:, same] = 1
        wanted = np.zeros((words, hidden), np.float32)
        for token, place in places.items():
            embedded[tokenizer.token_to_id(token), place] = 1
        for (token, step), after in self._next.items():
            row = wanted[tokenizer.token_to_id(after)]
            row[places[token]] = 100
            row[first_step + step if step else same] = 1 if step else 0.5
        # An answer begins after any other token; what a grammar demands ends as soon as it can.
        wanted[tokenizer.token_to_id("<think>"), same] = 3
        wanted[[tokenizer.token_to_id(character) for character in '"}'], same] = 2

        for (token, step), after in self._next.items():
            told = embedded[tokenizer.token_to_id(token)].copy()
            told[first_step + step] = step > 0
            if (wanted @ told).argmax() != tokenizer.token_to_id(after):
                raise ValueError(f"In step {step} {token!r} doesn't go on with {after!r}.")

        # The norm before the attention leaves this of a 1. The last dimension before the middle
        # is hardly turned by positions.
        normed, still = math.sqrt(hidden / 2), _HEAD // 2 - 1
        query, key, value = (np.zeros((_HEAD, hidden), np.float32) for _ in range(3))
        output = np.zeros((hidden, _HEAD), np.float32)
        # Each step outweighs the one before it by e^200.
        query[still, same] = math.sqrt(_HEAD) / normed
        for mark, step in self._marks.items():
            key[still, places[mark]] = 200 * step / normed
            value[step, places[mark]] = 1 / normed
            output[first_step + step, step] = 1
        nothing = np.zeros((32, hidden), np.float32)
        layer = {
            "self_attn.q_proj": query,
            "self_attn.k_proj": key,
            "self_attn.v_proj": value,
            "self_attn.o_proj": output,
            "mlp.gate_proj": nothing,
            "mlp.up_proj": nothing,
            "mlp.down_proj": nothing.T,
            "input_layernorm": np.ones(hidden, np.float32),
            "post_attention_layernorm": np.ones(hidden, np.float32),
        }
        found = {
            "model.embed_tokens": embedded,
            "model.norm": np.ones(hidden, np.float32),
            # So much that a temperature of 1 changes nothing.
            "lm_head": 8 * wanted,
            **{f"model.layers.0.{name}": ndarray for name, ndarray in layer.items()},
        }
        return {f"{name}.weight": mx.array(ndarray) for name, ndarray in found.items()}


def _chunks(text: str) -> list[str]:
    """Some words each."""
    return re.findall(r"(?:\S+\s*){1,3}", text)


def _call(step: Step, template: str) -> str:
    """What stands between the tags of a call."""
    if template == "strict":
        parameters = "".join(
            f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in step.arguments.items()
        )
        return f"\n<function={step.tool}>\n{parameters}</function>\n"
    return f"\n{json.dumps({'name': step.tool, 'arguments': step.arguments})}\n"


def _tokenizer() -> Tokenizer:
    """Of bytes, with words of this project's documents: prompts of agents are long."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(path) for path in sorted(_DOCUMENTS.glob("*.md"))], trainer)
    return tokenizer


def _settings(hidden: int, words: int) -> dict[str, dict[str, Any]]:
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": hidden,
            "num_hidden_layers": 1,
            "intermediate_size": 32,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "head_dim": _HEAD,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e9,
            "max_position_embeddings": 262144,
            "tie_word_embeddings": False,
            "vocab_size": words,
            "torch_dtype": "float32",
            "eos_token_id": [2, 0],
        },
        "generation_config.json": {"do_sample": False},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
        },
    }
