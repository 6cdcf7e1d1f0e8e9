"""What is told of a model's estimate: its parts, and what it would get of the memory."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

from gateway.memory.estimate.estimate import Estimate, Line
from gateway.memory.estimate.fitting import fit

_LENGTHS: Final = (2_000, 8_000, 32_000)

Verdict: TypeAlias = Literal["fits", "fits with a shorter context", "doesn't fit"]


class Outline(Struct, frozen=True):
    """Sizes in bytes. `floor_bytes`, the sum of the parts, must be had for a load with the whole
    context, `needed_bytes` with the one that is granted; `possible_bytes` can be had beside
    `kept_bytes`, which are pinned or of groups. `rows` are sequences by their tokens. `company` are
    the floors of models that are loaded with it.
    """

    context_tokens: int
    parts: tuple[Line, ...]
    floor_bytes: int
    idle_bytes: int
    measured_idle_bytes: int | None
    token_bytes: int
    rows: dict[int, int]
    verdict: Verdict
    needed_bytes: int
    possible_bytes: int
    kept_bytes: int
    granted_context_tokens: int
    company: dict[str, int]


def outline_of(
    whole: Estimate, possible_bytes: int, kept_bytes: int, company: dict[str, int]
) -> Outline | None:
    """None if its files don't tell what its sequences take."""
    if not whole.shape.sequence_bytes(whole.context_tokens):
        return None
    found = fit(whole, possible_bytes)
    verdict: Verdict = "doesn't fit"
    if found.fits:
        verdict = "fits with a shorter context" if found.is_cut else "fits"
    lengths = [each for each in _LENGTHS if each <= found.context_tokens]
    return Outline(
        context_tokens=whole.context_tokens,
        parts=whole.lines,
        floor_bytes=whole.floor_bytes,
        idle_bytes=whole.calculated_fixed_bytes,
        measured_idle_bytes=whole.measured_fixed_bytes,
        token_bytes=whole.token_bytes,
        rows={each: whole.rows(possible_bytes, each) for each in lengths},
        verdict=verdict,
        needed_bytes=found.needed_bytes,
        possible_bytes=possible_bytes,
        kept_bytes=kept_bytes,
        granted_context_tokens=found.context_tokens,
        company=company,
    )
