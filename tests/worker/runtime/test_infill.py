"""Prompts for what stands between two texts."""

from __future__ import annotations

from typing import Any

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from worker.runtime.prompts import infill_prompt


def _tokenizer(*special: str, begins: bool = False) -> Any:
    names = ["<s>", *special, "a", "b"]
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, "a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    return TokenizerWrapper(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


@pytest.mark.parametrize(
    ("special", "begins", "expected"),
    [
        (["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], False, [1, 4, 2, 5, 3]),
        (["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], True, [0, 1, 4, 2, 5, 3]),
        (["[PREFIX]", "[SUFFIX]"], True, [0, 2, 4, 1, 3]),
    ],
)
def test_forms(special: list[str], expected: list[int], *, begins: bool) -> None:
    assert infill_prompt("a", "b", _tokenizer(*special, begins=begins)) == expected


def test_models_that_were_not_taught_it() -> None:
    assert infill_prompt("a", "b", _tokenizer("<|fim_prefix|>", "<|fim_suffix|>")) is None
