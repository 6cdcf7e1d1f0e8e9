"""How a model marks its reasoning and its calls, and how much of them its prompt has opened
already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import regex

from worker.mlx_lm.text import Parse
from worker.text.assembly import Assembly
from worker.text.readers import EitherCalls, HeadedCalls, ObjectCalls, Reader, WholeCalls

# Of an assembly, and of the definitions of the tools.
MakeReader: TypeAlias = Callable[[Assembly, Any], Reader]


class Tags(NamedTuple):
    start: str
    end: str


@dataclass(frozen=True)
class CallBlock:
    """Tool calls after a tag."""

    start: str
    make: MakeReader


@dataclass(frozen=True)
class Bare:
    """Tool calls that an answer begins with, without a tag, by this character."""

    first: str
    make: MakeReader


@dataclass(frozen=True)
class AnswerFormat:
    """Tags that are `dropped` mean nothing to a client. `turns` are mlx-lm's transitions of a model
    that has messages with headers in its turns; `first` is the state that they begin in.
    """

    family: str = ""
    reasoning: Tags | None = None
    blocks: tuple[CallBlock, ...] = ()
    bare: Bare | None = None
    dropped: tuple[str, ...] = ()
    turns: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    first: str = "normal"
    harmony: bool = False


def objects(start: str, end: str = "", *, strict: bool = False) -> CallBlock:
    return CallBlock(start, lambda assembly, _: ObjectCalls(assembly, end, strict=strict))


def headed(start: str, end: str, head: str, tail: str = r"\s*") -> CallBlock:
    patterns = regex.compile(head), regex.compile(tail)
    return CallBlock(start, lambda assembly, _: HeadedCalls(assembly, end, *patterns))


def either(start: str, end: str, head: str, tail: str = r"\s*") -> CallBlock:
    """Objects, or calls with heads: the first character tells."""
    patterns = regex.compile(head), regex.compile(tail)
    return CallBlock(start, lambda assembly, _: EitherCalls(assembly, end, *patterns))


def whole(start: str, end: str, parse: Parse, begins: str) -> CallBlock:
    pattern = regex.compile(begins)
    return CallBlock(
        start,
        lambda assembly, definitions: WholeCalls(assembly, end, parse, definitions, pattern),
    )


# Of the end of a prompt: what templates write after its last message is shorter.
_END_TOKENS: Final = 256
# Harmony's first token of a message.
_START: Final = "<|start|>"


def opening_state(prompt_ids: list[int], tokenizer: Any, format_: AnswerFormat) -> str:
    """The state that an answer begins in: "reasoning" if its block was opened and not closed."""
    if format_.reasoning is None:
        return format_.first
    start, end = format_.reasoning
    text = _end_of(prompt_ids, tokenizer, keeping=(start, end))
    return "reasoning" if text.rfind(start) > text.rfind(end) else format_.first


def opening_header(prompt_ids: list[int], tokenizer: Any) -> str | None:
    """For harmony: what follows the last message's start, None if there is none."""
    text = str(tokenizer.decode(prompt_ids[-_END_TOKENS:]))
    at = text.rfind(_START)
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
