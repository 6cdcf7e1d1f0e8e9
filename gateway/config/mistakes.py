"""Where a value came from, and what is wrong with it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Source(Struct, frozen=True):
    """`name` is a file, a variable or a flag; `line` is of a file and counts from 1."""

    kind: Literal["default", "file", "environment", "flag"]
    name: str = ""
    line: int | None = None

    def __str__(self) -> str:
        if self.kind == "default":
            return self.kind
        return self.name if self.line is None else f"{self.name}:{self.line}"


class Mistake(Struct, frozen=True):
    """`key` is empty where it can't be told, as in a file that isn't TOML."""

    source: Source
    key: str
    message: str

    def __str__(self) -> str:
        parts = (str(self.source), self.key, self.message)
        return ": ".join(part for part in parts if part)
