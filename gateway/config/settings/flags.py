"""The command line of `serve`."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class Flags(Struct, frozen=True, kw_only=True):
    """What the command line of `serve` may say; None where it says nothing."""

    config: Path | None = None
    host: str | None = None
    port: int | None = None
    state_dir: Path | None = None
    models: tuple[str, ...] = ()
    memory_budget: str | None = None
    spare: int | None = None
