"""What a pull's process and whoever started it say to each other: a line of JSON each.

It ends when its standard input does: whoever pulls dies with its owner.
"""

from __future__ import annotations

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


class Order(Struct, frozen=True):
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


class Finished(Struct, frozen=True, tag="finished"):
    """All files are there, and right."""

    repository: str
    commit: str
    folder: str


class Failed(Struct, frozen=True, tag="failed"):
    """`message` is a sentence for people: what, why, and what to do."""

    code: Code
    message: str


Said: TypeAlias = Planned | Progressed | Finished | Failed
decode_said: Final = msgspec.json.Decoder(Said).decode


class PullError(Exception):
    """Why a pull ends without a model."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message
