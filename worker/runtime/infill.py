"""Prompts for what stands between two texts, for the models that were taught it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple


class Form(NamedTuple):
    """A model's tokens for it. Without `middle` the prefix comes last, and the answer after it."""

    prefix: str
    suffix: str
    middle: str | None


_FORMS: Final = (
    # Qwen2.5-Coder, Qwen3-Coder, CodeGemma, Granite 4
    Form("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    # StarCoder, Granite Code
    Form("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    Form("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    # DeepSeek-Coder, whose bars are wide ones
    Form("<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>"),
    # CodeLlama
    Form("▁<PRE>", "▁<SUF>", "▁<MID>"),
    # Seed-Coder
    Form("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),
    # Codestral
    Form("[PREFIX]", "[SUFFIX]", None),
)


def infill_prompt(prefix: str, suffix: str, tokenizer: Any) -> list[int] | None:
    """Token ids; None: the model has no tokens for this. `tokenizer` is mlx-lm's wrapper."""
    vocabulary = tokenizer.get_vocab()
    form = next((each for each in _FORMS if set(filter(None, each)) <= vocabulary.keys()), None)
    if form is None:
        return None
    before = [vocabulary[form.prefix], *_encode(prefix, tokenizer)]
    after = [vocabulary[form.suffix], *_encode(suffix, tokenizer)]
    # What this tokenizer begins every text with.
    begin = list(tokenizer.encode(""))
    if form.middle is None:
        return [*begin, *after, *before]
    return [*begin, *before, *after, vocabulary[form.middle]]


def _encode(text: str, tokenizer: Any) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))
