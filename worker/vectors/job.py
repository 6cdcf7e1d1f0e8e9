"""A request for vectors, ready for the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

# "cosine" compares the vectors of a job with that of its first text.
Kind: TypeAlias = Literal["embedding", "score", "cosine"]


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens; which of two texts each belongs to, if there are two; and how many of the first are
    a prompt that isn't pooled.
    """

    token_ids: list[int]
    types: list[int] | None = None
    skipped: int = 0


@dataclass(frozen=True)
class Job:
    """`dimensions` None: vectors stay as long as they are."""

    request_id: str
    kind: Kind
    texts: list[Text]
    priority: int = 0
    dimensions: int | None = None
