"""What a short-lived process in a worker's environment is asked, and answers, as lines of JSON."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Environment(Struct, frozen=True):
    """The first line: the imports are done."""

    python_version: str
    mlx_version: str
    mlx_lm_version: str


class Examined(Struct, frozen=True):
    """A line for each model: what keeps it from being loaded, or from chatting, in a sentence.

    `chats` says whether it has a chat template.
    """

    source: str
    problem: Literal["files", "architecture", "tokenizer", "template"] | None = None
    reason: str = ""
    chats: bool = False


class Examine(Struct, frozen=True):
    """Look at these, one after another, without their weights."""

    sources: tuple[str, ...]


class Measure(Struct, frozen=True):
    """Load a model and generate so many tokens after a prompt, greedily, alone; so many times."""

    source: str
    prompt: str
    tokens: int
    times: int


class Measured(Struct, frozen=True):
    """The quickest, from the first of the tokens to the last: load and prompt don't count."""

    seconds: float
