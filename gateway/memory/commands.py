"""The memory to ask for before a command starts."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from gateway.config.model_folders import expand_home
from gateway.config.model_settings import ModelSettings
from gateway.memory.estimate import EstimateLine
from gateway.memory.fitting import Learned, Outline
from gateway.system.notation import format_size

# The memory of a program beside its files, and more than most programs need beside a small model.
_PROGRAM_BYTES: Final = 500_000_000
_ASSUMED_BYTES: Final = 2_000_000_000

Basis: TypeAlias = Literal["configured", "measured", "files", "assumed"]


# `memory` may be exceeded by this share before it is called too small.
_EXCESS: Final = 0.05


class CommandEstimate(Struct, frozen=True):
    """The bytes to ask for, what they are based on, and the `key` by which the command's
    measurements are kept. If the bytes are configured, an earlier run has held `held_bytes`.
    """

    bytes: int
    basis: Basis
    key: str
    held_bytes: int = 0

    @property
    def too_small(self) -> str | None:
        """The end of a sentence: the configured memory is too small. None: it isn't."""
        if self.held_bytes <= self.bytes * (1 + _EXCESS):
            return None
        return f"an earlier run held {format_size(self.held_bytes)}: raise `memory`"

    @property
    def why(self) -> str:
        """Where the number comes from, as the end of a sentence."""
        match self.basis:
            case "configured":
                return "; ".join(filter(None, ("as the key memory says", self.too_small)))
            case "measured":
                return "the most that an earlier run has held"
            case "files":
                return "the size of its files, and more for the program, as no run has held more"
            case "assumed":
                return "an assumption, as it has neither run yet nor names its memory or files"


def estimate_of_command(settings: ModelSettings, learned: Learned) -> CommandEstimate:
    """Estimate a command. Blocks while its files are looked at.

    Raises:
        OSError: a file or folder can't be looked at.
    """
    key = _key(settings)
    ready_bytes = learned.fixed_bytes(key)
    held_bytes = max(ready_bytes or 0, learned.fixed_bytes(loading_key(key)) or 0)
    if settings.memory_bytes is not None:
        return CommandEstimate(settings.memory_bytes, "configured", key, held_bytes)
    measured = CommandEstimate(held_bytes, "measured", key)
    if settings.files:
        file_bytes = sum(_size(expand_home(file)) for file in settings.files)
        # Less than the files: they are mapped, and macOS counts no mapped file as a process's own.
        if ready_bytes is None or ready_bytes <= file_bytes:
            file_estimate = CommandEstimate(file_bytes + _PROGRAM_BYTES, "files", key)
            return max(file_estimate, measured, key=lambda estimate: estimate.bytes)
    elif ready_bytes is None and held_bytes <= _ASSUMED_BYTES:
        return CommandEstimate(_ASSUMED_BYTES, "assumed", key)
    return measured


def loading_key(key: str) -> str:
    """The key of the most bytes that a command has held before it was ready. It may have been ended
    early, so these bytes only raise an estimate.
    """
    return f"{key}|loading"


def outline_of_command(
    estimate: CommandEstimate, possible_bytes: int, reserved_bytes: int, company: dict[str, int]
) -> Outline:
    """The outline of a command, of which only its memory is known."""
    return Outline(
        context_tokens=0,
        parts=(EstimateLine("command", estimate.bytes, estimate.why),),
        floor_bytes=estimate.bytes,
        idle_bytes=estimate.bytes,
        measured_idle_bytes=estimate.bytes if estimate.basis == "measured" else None,
        token_bytes=0,
        rows={},
        fitness="fits" if estimate.bytes <= possible_bytes else "doesn't fit",
        needed_bytes=estimate.bytes,
        possible_bytes=possible_bytes,
        reserved_bytes=reserved_bytes,
        granted_context_tokens=0,
        company=company,
    )


def _key(settings: ModelSettings) -> str:
    """A digest, as the environment may have secrets."""
    parts = (settings.command, settings.environment, settings.files)
    return f"command|{hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]}"


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(
        (Path(folder) / name).stat().st_size for folder, _, names in os.walk(path) for name in names
    )
