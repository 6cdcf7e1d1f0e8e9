"""What was measured, part by part. Sizes are bytes; None is what the system doesn't tell."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from gateway.system.memory import BackEnd
from protocol.errands import Environment
from protocol.memory import MlxMemory
from protocol.probe import AttentionPeak, StepTimes


class Machine(Struct, frozen=True):
    """Where it was measured. `device` is mx.device_info(); nothing where MLX couldn't be asked."""

    system: str
    back_end: BackEnd
    device: dict[str, Any]
    environment: Environment | None
    total_bytes: int
    available_bytes: int
    pressure: str | None
    wired_limit_mb: int | None


class Held(Struct, frozen=True):
    """A process from outside, and by MLX's own account, at one moment."""

    what: str
    footprint_bytes: int
    memory: MlxMemory

    @property
    def beside_bytes(self) -> int:
        """What MLX's account lacks."""
        return self.footprint_bytes - self.memory.active_bytes - self.memory.cache_bytes


class ProcessFigures(Struct, frozen=True):
    """A worker after its imports, and then as it holds more, lets go, and gives back."""

    imported: Held
    holding: tuple[Held, ...]
    dropped: Held
    trimmed: Held


class Gauge(Struct, frozen=True):
    """The machine at one moment."""

    available_bytes: int
    wired_bytes: int | None


class ReturnFigures(Struct, frozen=True):
    """A process that held so much, and the machine before, meanwhile, and after its end.

    The end took `exit_s`. `back_s` is how long after it all was back; None: it wasn't while that
    was watched for.
    """

    held_bytes: int
    before: Gauge
    meanwhile: Gauge
    after: Gauge
    exit_s: float
    back_s: float | None
    watched_s: float


class StepFigures(Struct, frozen=True):
    """Before them `busy` of the processors' time was taken, from 0 to 1."""

    times: StepTimes
    busy: float


class AttentionFigures(Struct, frozen=True):
    """Of one head dimension and kind of mask."""

    head_dim: int
    mask: Literal["array", "causal"]
    peak: AttentionPeak


class RightsFigures(Struct, frozen=True):
    """What reading a footprint gave: bytes, or why there are none."""

    own: int | str
    child: int | str
    first_process: int | str
