"""Which format a model has, by its chat template and vocabulary, as mlx-lm chooses its parsers."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from worker.text.families import FAMILIES, HERMES, THOUGHTS, Family
from worker.text.format import Format, Tags
from worker.text.mlx_lm_formats import block_of_mlx_lm


def find_format(tokenizer: Any) -> Format:
    """`tokenizer` is mlx-lm's wrapper: where it has chosen, it counts."""
    template, vocabulary = template_text(tokenizer), tokenizer.get_vocab()
    if all(each in vocabulary for each in ("<|start|>", "<|channel|>", "<|message|>")):
        return Format("harmony", harmony=True)
    family = _family(template, vocabulary)
    name, blocks, bare = family.name, family.blocks, family.bare
    if tokenizer.has_tool_calling and not (family.before_mlx_lm and family.mark in template):
        name, block = block_of_mlx_lm(tokenizer)
        blocks, bare = (block,), None
    dropped = [each for each in family.around if each in template or each in vocabulary]
    return Format(
        name,
        _reasoning(tokenizer, template, vocabulary),
        blocks,
        bare,
        (*dropped, *tokenizer.structural_markers),
        tuple((state, tuple(edges)) for state, edges in tokenizer.response_transitions.items()),
        tokenizer.response_initial_state or "normal",
    )


def template_text(tokenizer: Any) -> str:
    """All of the chat templates that a tokenizer has, as Jinja has them."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        return "\n".join(str(each) for each in template.values())
    return template if isinstance(template, str) else ""


def _family(template: str, vocabulary: Container[str]) -> Family:
    # Vocabularies are often those of other models.
    for marks in (template, vocabulary):
        for family in FAMILIES:
            if family.mark in marks:
                return family
    # The most common one, for models whose template says nothing of tools.
    return HERMES


def _reasoning(tokenizer: Any, template: str, vocabulary: Container[str]) -> Tags | None:
    if tokenizer.has_thinking:
        return Tags(tokenizer.think_start, tokenizer.think_end)
    for marks in (vocabulary, template):
        for tags in THOUGHTS:
            if tags.start in marks and tags.end in marks:
                return tags
    return None
