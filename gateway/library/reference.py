"""How people name the models of the hub: a repository with or without a quantization, or words."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

# The organization that quantizes most models for MLX, each quantization as a repository.
COMMUNITY: Final = "mlx-community"
_PREFIXES: Final = (
    "https://huggingface.co/",
    "http://huggingface.co/",
    "https://hf.co/",
    "huggingface.co/",
    "hf.co/",
)
# The names that the hub allows (huggingface_hub's validate_repo_id), always with an owner.
_NAME: Final = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?"
_REFERENCE: Final = re.compile(rf"({_NAME}/{_NAME})(?::([\w.-]+))?", re.ASCII)
_LONGEST: Final = 96


class Reference(Struct, frozen=True):
    """A model of the hub. `quantization` is as the user wrote it: 4bit, 8bit, bf16, 4bit-DWQ."""

    repository: str
    quantization: str | None = None

    def __str__(self) -> str:
        suffix = "" if self.quantization is None else f":{self.quantization}"
        return self.repository + suffix

    @property
    def candidates(self) -> tuple[str, ...]:
        """The repositories that the user may mean, the likeliest first.

        For MLX each quantization is a repository, neither a file nor a branch. The name of the
        repository ends with the quantization, and its owner is mostly mlx-community.
        """
        if self.quantization is None:
            return (self.repository,)
        suffix = f"-{self.quantization}"
        name = self.repository.rpartition("/")[2]
        whole = (self.repository,) if name.lower().endswith(suffix.lower()) else ()
        return tuple(
            dict.fromkeys((*whole, f"{self.repository}{suffix}", f"{COMMUNITY}/{name}{suffix}"))
        )


def parse_reference(text: str) -> Reference:
    """The model of the hub that `text` names or has the address of.

    Raises:
        ValueError: `text` names no model. The message is a sentence with examples.
    """
    bare = text.strip()
    for prefix in _PREFIXES:
        if bare.startswith(prefix):
            bare = bare.removeprefix(prefix).removesuffix("/").removesuffix("/tree/main")
    parsed = _REFERENCE.fullmatch(bare)
    if parsed is None or "--" in parsed[1] or ".." in parsed[1] or len(parsed[1]) > _LONGEST:
        owner = "" if "/" in bare else f" Name its owner, too: {COMMUNITY}/{bare}?"
        raise ValueError(
            f"{text!r} is no model of the hub: expected OWNER/NAME or OWNER/NAME:QUANT, as "
            f"{COMMUNITY}/Qwen3-4B-4bit or Qwen/Qwen3-4B:4bit.{owner if bare else ''}"
        )
    return Reference(parsed[1], parsed[2])


_MARKS: Final = re.compile(r"[^a-z0-9.]+")
_PARAMETERS: Final = re.compile(r"[\d.]+[bm]")


def words_of(text: str) -> tuple[str, ...]:
    return tuple(text.lower().split())


def matches(words: tuple[str, ...], name: str) -> bool:
    """Whether each word is somewhere in the name. A number of parameters must be a whole part of
    the name: 4b is not in Qwen3-8B-4bit.
    """
    parts = parts_of(name)
    return all(
        word in parts if _PARAMETERS.fullmatch(word) else word in name.lower() for word in words
    )


def parts_of(name: str) -> frozenset[str]:
    """The parts of a name between its hyphens and other marks, in small letters."""
    return frozenset(_MARKS.split(name.lower()))
