"""What may be asked for: `owner/name`, or `owner/name:4bit`."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

# Who quantizes most of what MLX can run, each quantization as a repository of its own.
COMMUNITY: Final = "mlx-community"
_PREFIXES: Final = (
    "https://huggingface.co/",
    "http://huggingface.co/",
    "https://hf.co/",
    "huggingface.co/",
    "hf.co/",
)
# What the hub allows (huggingface_hub's validate_repo_id), with an owner always.
_NAME: Final = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?"
_REFERENCE: Final = re.compile(rf"({_NAME}/{_NAME})(?::([\w.-]+))?", re.ASCII)
_LONGEST: Final = 96


class Reference(Struct, frozen=True):
    """`quantization` is as it was written: 4bit, 8bit, bf16, 4bit-DWQ."""

    repository: str
    quantization: str | None = None

    def __str__(self) -> str:
        suffix = "" if self.quantization is None else f":{self.quantization}"
        return self.repository + suffix

    @property
    def candidates(self) -> tuple[str, ...]:
        """The repositories that it may be, the likeliest first.

        For MLX a quantization is neither a file nor a branch of a repository, but one with its name
        at the end; and of most models they are mlx-community's.
        """
        if self.quantization is None:
            return (self.repository,)
        suffix = f"-{self.quantization}"
        name = self.repository.rpartition("/")[2]
        own = f"{self.repository}{suffix}"
        whole = (self.repository,) if name.lower().endswith(suffix.lower()) else ()
        return tuple(dict.fromkeys((*whole, own, f"{COMMUNITY}/{name}{suffix}")))


def parse_reference(text: str) -> Reference:
    """Addresses of the hub are taken as well, as people copy them.

    Raises:
        ValueError: with a sentence that says what may stand there.
    """
    bare = text.strip()
    for prefix in _PREFIXES:
        if bare.startswith(prefix):
            bare = bare.removeprefix(prefix).removesuffix("/").removesuffix("/tree/main")
    found = _REFERENCE.fullmatch(bare)
    if found is None or "--" in found[1] or ".." in found[1] or len(found[1]) > _LONGEST:
        owner = "" if "/" in bare else f" Name its owner, too: {COMMUNITY}/{bare}?"
        raise ValueError(
            f"{text!r} is no model of the hub: expected OWNER/NAME or OWNER/NAME:QUANT, as "
            f"{COMMUNITY}/Qwen3-4B-4bit or Qwen/Qwen3-4B:4bit.{owner if bare else ''}"
        )
    return Reference(found[1], found[2])
