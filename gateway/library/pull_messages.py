"""What a pull is asked for, and what its process and the process that started it tell each other.

Each message is a line of JSON. The pull's process ends when its standard input does: it dies with
the process that started it.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

# Names that are a file's problem, a person's, or the network's.
Code: TypeAlias = Literal[
    "not_found",
    "not_allowed",
    "no_model",
    "busy",
    "offline",
    "unreachable",
    "disk_full",
    "wrong_bytes",
    "insufficient_memory",
    "broken",
]


class PullJob(Struct, frozen=True):
    """The first line of the input. `folder` is where models lie that are copied instead of asked
    the hub for. Without a byte for `stall_s` a connection is given up; the first pause before
    another is `pause_s`, and after `patience_s` without a byte so is the pull. A hub that has
    not answered at all is given up after `answer_s`, unless this `goes_on` with an earlier pull.
    """

    model: str
    endpoint: str | None = None
    folder: str | None = None
    stall_s: float = 30.0
    pause_s: float = 1.0
    patience_s: float = 1800.0
    answer_s: float = 20.0
    goes_on: bool = False


# The second line, once there is a plan that whoever ordered it agrees with.
GO: Final = b"go\n"


class Planned(Struct, frozen=True, tag="planned"):
    """What a pull would do; it waits for `GO` then. `config` is the model's config.json. Elements
    of the weights' most common floating-point type have `element_bytes`.
    """

    repository: str
    commit: str
    files: int
    total_bytes: int
    missing_bytes: int
    free_bytes: int
    config: dict[str, Any]
    weight_bytes: int
    element_bytes: int


class Progressed(Struct, frozen=True, tag="progressed"):
    """`trouble` is why nothing comes at present."""

    done_bytes: int
    total_bytes: int
    bytes_per_s: float | None
    seconds_left: float | None
    trouble: str | None = None


class PullFinished(Struct, frozen=True, tag="finished"):
    """All files are there, and right."""

    repository: str
    commit: str
    folder: str


class PullFailed(Struct, frozen=True, tag="failed"):
    """`message` is a sentence for people: what, why, and what to do."""

    code: Code
    message: str


Said: TypeAlias = Planned | Progressed | PullFinished | PullFailed
decode_said: Final = msgspec.json.Decoder(Said).decode


class PullError(Exception):
    """Why a pull ends without a model."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message


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
