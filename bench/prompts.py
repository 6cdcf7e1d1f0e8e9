"""Prompts, and how they are to be answered: greedily, or each with sampling settings of its own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from msgspec import Struct

Prompt = str | list[int]


class FreshPrompts:
    """Short prompts, none of them twice, so that no prompt cache can answer for the model."""

    def __init__(self) -> None:
        # They differ from the first token on: caches look for a common beginning.
        self._numbers = itertools.count(1000)

    def draw(self, count: int) -> list[str]:
        return [
            f"{number} ships set out to sea, and the captain said"
            for number in itertools.islice(self._numbers, count)
        ]


class SamplingSettings(Struct, frozen=True):
    """There is no seed: mlx_lm.server answers a request with one outside its batch. Bulkhead gives
    every request a seed of its own.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


GREEDY = SamplingSettings()


class Sampled(list[Prompt]):
    """Prompts, and the settings of each; a plain list is answered greedily."""

    def __init__(self, prompts: Sequence[Prompt], settings: Sequence[SamplingSettings]) -> None:
        super().__init__(prompts)
        self.settings = settings


def sampled(prompts: Sequence[Prompt]) -> Sampled:
    """Up to 60 prompts have settings that differ from each other; one in five has a temperature
    alone.
    """
    return Sampled(prompts, [_different(index) for index in range(len(prompts))])


def settings_of(prompts: Sequence[Prompt]) -> Sequence[SamplingSettings]:
    return prompts.settings if isinstance(prompts, Sampled) else [GREEDY] * len(prompts)


def _different(index: int) -> SamplingSettings:
    temperature = 0.5 + index % 60 / 60
    match index % 5:
        case 0:
            return SamplingSettings(temperature)
        case 1:
            return SamplingSettings(temperature, top_p=0.9)
        case 2:
            return SamplingSettings(temperature, top_k=20 + index)
        case 3:
            return SamplingSettings(temperature, min_p=0.05)
        case _:
            return SamplingSettings(temperature, top_p=0.95, top_k=40, min_p=0.01)
