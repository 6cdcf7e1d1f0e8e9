"""The results of a search, in their order, and whether each fits into memory. Without a search they
are well-known models, of a list in this file. No I/O here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from gateway.library.hub_process import Candidate
from gateway.library.reference import parts_of
from gateway.memory.fitting import guessed_floor_bytes

# The longest text of a search, in characters.
LONGEST_QUERY: Final = 200
_MOST: Final = 20
_YEAR_S: Final = 365 * 86400.0

Fits: TypeAlias = Literal["now", "after unloading", "never"]


class Room(Struct, frozen=True):
    """The memory for another model, in bytes: `free_bytes` are free now, and `possible_bytes` would
    be if all models were unloaded that may be. A worker without a model takes `process_bytes`.
    """

    free_bytes: int
    possible_bytes: int
    process_bytes: int


class HubFinding(Struct, frozen=True, kw_only=True):
    """A repository of the hub; null means not known. A load needs about `needed_bytes`, guessed by
    the size of the weights: a pull computes it before it begins. `fits` now, after the unload of
    other models, or never. `downloads` are those of the last 30 days, `changed_at` is a Unix time
    in seconds. `mlx`: the weights were made for MLX. `gated`: its owner must grant the download.
    `embeds`: it makes embeddings, and no text. `problem` says why nothing here loads it.
    `served_as` is its id if it is on this machine already.
    """

    repository: str
    weight_bytes: int | None
    needed_bytes: int | None
    fits: Fits | None
    downloads: int | None
    changed_at: float | None
    mlx: bool
    gated: bool
    embeds: bool
    problem: str | None
    served_as: str | None

    @property
    def can_chat(self) -> bool:
        """Whether a chat with the model seems possible on this machine."""
        return self.problem is None and not self.embeds and self.fits != "never"


class Findings(Struct, frozen=True, kw_only=True):
    """The results of a search, the best first. Without a query they are the well-known models of
    the package's list, made at the date `dated`.
    """

    query: str
    dated: str | None
    free_bytes: int
    possible_bytes: int
    results: tuple[HubFinding, ...]


# When the list was made: better models may have come since.
DATED: Final = "2026-10"


def _well_known(name: str, weight_gigabytes: float) -> Candidate:
    return Candidate(
        repository=f"mlx-community/{name}", weight_bytes=int(weight_gigabytes * 1e9), mlx=True
    )


# From small to large. Sizes are 4.5 bits for each parameter, or as reported.
WELL_KNOWN: Final = (
    _well_known("Qwen3-0.6B-4bit", 0.34),
    _well_known("Qwen3-1.7B-4bit", 0.97),
    _well_known("Llama-3.2-3B-Instruct-4bit", 1.8),
    _well_known("Qwen3-4B-4bit", 2.3),
    _well_known("Qwen3-8B-4bit", 4.6),
    _well_known("Qwen3.5-9B-4bit", 6.0),
    _well_known("gpt-oss-20b-MXFP4-Q8", 12.1),
    _well_known("Qwen3.6-27B-4bit", 16.0),
    _well_known("Qwen3.6-35B-A3B-4bit", 20.0),
    _well_known("Llama-3.3-70B-Instruct-4bit", 39.7),
    _well_known("GLM-4.5-Air-4bit", 60.1),
    _well_known("Qwen3-235B-A22B-4bit", 132.2),
)


def rank_candidates(
    words: tuple[str, ...],
    candidates: Iterable[Candidate],
    room: Room,
    served: Mapping[str, str],
    now: float,
) -> Findings:
    """The findings for the words. `served` maps the repositories on this machine to their ids."""
    ordered = sorted(candidates, key=lambda candidate: _rank(words, candidate, now))
    return _findings(" ".join(words), None, ordered[:_MOST], room, served)


def well_known(room: Room, served: Mapping[str, str]) -> Findings:
    """The models of the package's list, the smallest first."""
    return _findings("", DATED, WELL_KNOWN, room, served)


def _findings(
    query: str,
    dated: str | None,
    candidates: Iterable[Candidate],
    room: Room,
    served: Mapping[str, str],
) -> Findings:
    return Findings(
        query=query,
        dated=dated,
        free_bytes=max(0, room.free_bytes),
        possible_bytes=max(0, room.possible_bytes),
        results=tuple(
            _judged(candidate, room, served.get(candidate.repository)) for candidate in candidates
        ),
    )


def _judged(candidate: Candidate, room: Room, served_as: str | None) -> HubFinding:
    needed_bytes = None
    if candidate.weight_bytes is not None:
        needed_bytes = guessed_floor_bytes(candidate.weight_bytes, room.process_bytes)
    return HubFinding(
        repository=candidate.repository,
        weight_bytes=candidate.weight_bytes,
        needed_bytes=needed_bytes,
        fits=None if needed_bytes is None else _fits(needed_bytes, room),
        downloads=candidate.downloads,
        changed_at=candidate.changed_at,
        mlx=candidate.mlx,
        gated=candidate.gated,
        embeds=candidate.embeds,
        problem=candidate.problem,
        served_as=served_as,
    )


def _fits(needed_bytes: int, room: Room) -> Fits:
    if needed_bytes > room.possible_bytes:
        return "never"
    return "now" if needed_bytes <= room.free_bytes else "after unloading"


def _rank(words: tuple[str, ...], candidate: Candidate, now: float) -> tuple[object, ...]:
    """The sort key of a candidate. Loadable models come first, then those for MLX, then those whose
    names have most of the words as whole parts: Qwen3-4B has qwen3, and Qwen3.5-4B hasn't. Among
    these a year of age weighs as much as a tenth of the downloads.
    """
    parts = parts_of(candidate.repository)
    whole = sum(word in parts for word in words)
    age_years = (now - (candidate.changed_at or 0.0)) / _YEAR_S
    worth = math.log10(1 + (candidate.downloads or 0)) - age_years
    return (candidate.problem is not None, not candidate.mlx, -whole, -worth, candidate.repository)
