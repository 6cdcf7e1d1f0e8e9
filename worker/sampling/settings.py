"""The sampling settings of one request, and its random numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from protocol.requests import Sampling, SamplingDefaults

_MASK64: Final = (1 << 64) - 1
# Lower temperatures choose like greedy sampling, unless logits are equal. Far lower temperatures
# would make logits infinite.
_LEAST_TEMPERATURE: Final = 1e-6
# One bit less than the significand of a float32. So a number halfway between two multiples of 2^-23
# is exact, and its product with a total is neither 0 nor the total.
_UNIFORM_BITS: Final = 23


class Uniforms(NamedTuple):
    """Two independent random numbers in (0, 1). Together they resolve probabilities of 2^-46."""

    outer: float
    inner: float


@dataclass(frozen=True)
class RowSampling:
    """The sampling settings of one sequence, and its position in the seed's random numbers.

    A random number depends on seed and position alone. MLX's own random state would advance with
    every row of the batch, so that a seed would give another text beside other requests. `top_p` 1,
    `top_k` 0 and `min_p` 0 filter nothing. `position` is the place of the first token to sample,
    counted from the prompt's end.
    """

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    position: int = 0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    # Tokens that XTC never leaves out: those that end an answer or a line.
    xtc_spared: tuple[int, ...] = ()

    def again_after(self, tokens: int) -> RowSampling:
        """The same settings, with the position moved on by so many tokens."""
        return replace(self, position=self.position + tokens)

    def stream(self) -> int:
        """The number of the seed's stream of random numbers, 64 bits."""
        return _splitmix64(self.seed & _MASK64)


def make_row_sampling(
    sampling: Sampling,
    defaults: SamplingDefaults,
    vocabulary: int,
    position: int = 0,
    xtc_spared: tuple[int, ...] = (),
) -> RowSampling | None:
    """The settings of one request; None: the request is greedy."""
    temperature = defaults.temperature if sampling.temperature is None else sampling.temperature
    top_p = defaults.top_p if sampling.top_p is None else sampling.top_p
    top_k = defaults.top_k if sampling.top_k is None else sampling.top_k
    min_p = defaults.min_p if sampling.min_p is None else sampling.min_p
    if temperature < _LEAST_TEMPERATURE or top_k == 1:
        return None
    return RowSampling(
        sampling.seed,
        temperature,
        # mlx-lm filters nothing at 0 either.
        top_p if 0.0 < top_p < 1.0 else 1.0,
        top_k if 0 < top_k < vocabulary else 0,
        # A model's defaults may have any number; above 1 no token would be left.
        min(max(min_p, 0.0), 1.0),
        position,
        sampling.xtc_probability,
        sampling.xtc_threshold,
        xtc_spared if sampling.xtc_probability > 0.0 else (),
    )


def uniforms(stream: int, position: int) -> Uniforms:
    """The random numbers that choose the token at a position."""
    mixed = _splitmix64((stream + position) & _MASK64)
    outer = mixed >> (64 - _UNIFORM_BITS)
    inner = mixed & ((1 << _UNIFORM_BITS) - 1)
    return Uniforms((outer + 0.5) / (1 << _UNIFORM_BITS), (inner + 0.5) / (1 << _UNIFORM_BITS))


def chance(stream: int, position: int) -> float:
    """Another random number for the position, in (0, 1), of bits that `uniforms` doesn't use."""
    mixed = _splitmix64((stream + position) & _MASK64)
    left = 64 - 2 * _UNIFORM_BITS
    return (((mixed >> _UNIFORM_BITS) & ((1 << left) - 1)) + 0.5) / (1 << left)


def _splitmix64(value: int) -> int:
    """Spread neighbouring seeds over 64 bits (Steele, Lea, Flood: Fast Splittable PRNGs, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
