"""What a prompt has of the answer already: templates open blocks themselves."""

from __future__ import annotations

from typing import Any, Final

from worker.text.format import Format
from worker.text.harmony import START

# Of the end of a prompt: what templates write after its last message is shorter.
_END_TOKENS: Final = 256


def opening_state(prompt_ids: list[int], tokenizer: Any, format_: Format) -> str:
    """The state that an answer begins in: "reasoning" if its block was opened and not closed."""
    if format_.reasoning is None:
        return format_.first
    start, end = format_.reasoning
    text = _end_of(prompt_ids, tokenizer, keeping=(start, end))
    return "reasoning" if text.rfind(start) > text.rfind(end) else format_.first


def opening_header(prompt_ids: list[int], tokenizer: Any) -> str | None:
    """For harmony: what follows the last message's start, None if there is none."""
    text = str(tokenizer.decode(prompt_ids[-_END_TOKENS:]))
    at = text.rfind(START)
    return None if at < 0 else text[at:]


def _end_of(prompt_ids: list[int], tokenizer: Any, keeping: tuple[str, ...]) -> str:
    """What stands after the last special token but these: messages open nothing."""
    special = set(tokenizer.all_special_ids)
    end = prompt_ids[-_END_TOKENS:]
    begin = len(end)
    while begin and (end[begin - 1] not in special or _is_part(end[begin - 1], tokenizer, keeping)):
        begin -= 1
    return str(tokenizer.decode(end[begin:]))


def _is_part(token_id: int, tokenizer: Any, keeping: tuple[str, ...]) -> bool:
    text = str(tokenizer.decode([token_id]))
    return any(text in each for each in keeping)
