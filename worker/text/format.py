"""The format of a model's answers: its tags of reasoning and calls, and the state that an answer
begins in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import regex

from worker.calls.assembly import Assembly
from worker.calls.readers import Reader
from worker.calls.values import Schemas

# Makes a reader. The arguments are an assembly and the schemas of the tools.
MakeReader: TypeAlias = Callable[[Assembly, Schemas], Reader]
# How much of a prompt's end is searched if no special tokens end its messages. Templates write less
# than that after the last message.
_END_TOKENS: Final = 256
# Harmony's tokens before and behind the header of a message.
_START: Final = "<|start|>"
_MESSAGE: Final = "<|message|>"


class Tags(NamedTuple):
    start: str
    end: str


@dataclass(frozen=True)
class CallBlock:
    """A block of tool calls after the tag `start`. `make` makes its reader. A `loose` tag may be
    quoted in any text: it begins a block only at the beginning of a line that is no code.
    """

    start: str
    make: MakeReader
    loose: bool = False


@dataclass(frozen=True)
class BareCalls:
    """Tool calls without a tag. An answer whose beginning matches `begins` may be such calls;
    `make` makes their reader.
    """

    begins: regex.Pattern[str]
    make: MakeReader


@dataclass(frozen=True)
class AnswerFormat:
    """The tags of a model's answers. The tags `dropped` mean nothing to a client, and are left out.
    `turns` are mlx-lm's transitions between states, for a model whose turns have messages with
    headers. An answer begins in the state `first`.
    """

    family: str = ""
    reasoning: Tags | None = None
    blocks: tuple[CallBlock, ...] = ()
    bare: tuple[BareCalls, ...] = ()
    dropped: tuple[str, ...] = ()
    turns: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    first: str = "normal"
    harmony: bool = False


def opening_state(prompt_ids: list[int], tokenizer: Any, format_: AnswerFormat) -> str:
    """The state that an answer begins in: "reasoning" if the prompt ends in open reasoning."""
    if format_.reasoning is None:
        return format_.first
    start, end = format_.reasoning
    text = _end_of(prompt_ids, tokenizer, keeping=(start, end))
    return "reasoning" if text.rfind(start) > text.rfind(end) else format_.first


def opening_header(prompt_ids: list[int], tokenizer: Any) -> str | None:
    """For harmony: the header of the prompt's last message; None if there is no message."""
    starts = tokenizer.encode(_START, add_special_tokens=False)
    size = len(starts)
    places = range(len(prompt_ids) - size, -1, -1)
    place = next((place for place in places if prompt_ids[place : place + size] == starts), None)
    if place is None:
        return None
    # An answer may go on in a message that the prompt has begun.
    header, end, _ = str(tokenizer.decode(prompt_ids[place:])).partition(_MESSAGE)
    return header + end


def _end_of(prompt_ids: list[int], tokenizer: Any, keeping: tuple[str, ...]) -> str:
    """The end of a prompt, after the last special token that is no part of a tag in `keeping`. That
    token ends a message, and tags in a message don't open reasoning.
    """
    special = set(tokenizer.all_special_ids)
    begin = len(prompt_ids)
    while begin and (
        prompt_ids[begin - 1] not in special or _is_part(prompt_ids[begin - 1], tokenizer, keeping)
    ):
        begin -= 1
    if begin <= 1:
        # No special token ends messages here.
        begin = max(begin, len(prompt_ids) - _END_TOKENS)
    return str(tokenizer.decode(prompt_ids[begin:]))


def _is_part(token_id: int, tokenizer: Any, keeping: tuple[str, ...]) -> bool:
    text = str(tokenizer.decode([token_id]))
    return any(text in kept_text for kept_text in keeping)
