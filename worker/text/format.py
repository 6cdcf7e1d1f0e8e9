"""How a model marks what it thinks and calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import regex

from worker.text.assembly import Assembly
from worker.text.readers import EitherCalls, HeadedCalls, ObjectCalls, Parse, Reader, WholeCalls

# Of an assembly, and of the definitions of the tools.
MakeReader: TypeAlias = Callable[[Assembly, Any], Reader]


class Tags(NamedTuple):
    start: str
    end: str


@dataclass(frozen=True)
class Block:
    """Tool calls after a tag."""

    start: str
    make: MakeReader


@dataclass(frozen=True)
class Bare:
    """Tool calls that an answer begins with, without a tag, by this character."""

    first: str
    make: MakeReader


@dataclass(frozen=True)
class Format:
    """Tags that are `dropped` mean nothing to a client. `turns` are mlx-lm's transitions of a model
    that has messages with headers in its turns; `first` is the state that they begin in.
    """

    family: str = ""
    reasoning: Tags | None = None
    blocks: tuple[Block, ...] = ()
    bare: Bare | None = None
    dropped: tuple[str, ...] = ()
    turns: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    first: str = "normal"
    harmony: bool = False


def objects(start: str, end: str = "", *, strict: bool = False) -> Block:
    return Block(start, lambda assembly, _: ObjectCalls(assembly, end, strict=strict))


def headed(start: str, end: str, head: str, tail: str = r"\s*") -> Block:
    patterns = regex.compile(head), regex.compile(tail)
    return Block(start, lambda assembly, _: HeadedCalls(assembly, end, *patterns))


def either(start: str, end: str, head: str, tail: str = r"\s*") -> Block:
    """Objects, or calls with heads: the first character tells."""
    patterns = regex.compile(head), regex.compile(tail)
    return Block(start, lambda assembly, _: EitherCalls(assembly, end, *patterns))


def whole(start: str, end: str, parse: Parse, begins: str) -> Block:
    pattern = regex.compile(begins)
    return Block(
        start,
        lambda assembly, definitions: WholeCalls(assembly, end, parse, definitions, pattern),
    )
