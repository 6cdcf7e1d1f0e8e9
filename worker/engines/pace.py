"""How long a chunk of prefill may be: a bound in seconds, whatever the hardware makes of a token.

On a CPU 2,048 tokens of a dense model can take minutes, and nothing else happens meanwhile: no
other stream gets a token, no cancellation is seen, no progress is reported. It is bounded in tokens
too, over all rows, since what a chunk takes beside the caches grows with its length.

The further a prompt has come, the longer a token takes, as it looks at all before it. So speeds are
known by how far rows had come: a short prompt beside a long one says nothing of the long one's.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from protocol.chunks import LARGEST_TOKENS

_SMALLEST: Final = 16
_FIRST: Final = 64
_GROWTH: Final = 4
# Fewer tokens in a short time: that was the step's fixed cost, and the speed is higher.
_TELLING: Final = 64
# What was measured so many chunks ago may be of another hour: machines do other things too.
_FRESH: Final = 8
# What was too much for the device is tried again after so many chunks.
_CALM: Final = 64
# So many earlier tokens to look at cost no more than what else a token takes, in any model.
_FREE_CONTEXT: Final = 1024


@dataclass(frozen=True)
class _Speed:
    """As the chunk of this number found it."""

    tokens_per_s: float
    context: int
    number: int

    def at_least(self, context: int) -> float:
        """The speed behind so many tokens, were earlier ones all that a token costs."""
        further = (_FREE_CONTEXT + context) / (_FREE_CONTEXT + self.context)
        return self.tokens_per_s / max(1.0, further)


class PrefillPace:
    """Chooses chunk lengths from the measured speed. Powers of two keep MLX's shapes few."""

    def __init__(
        self, largest: int = LARGEST_TOKENS, alone_s: float = 1.0, beside_decoding_s: float = 0.2
    ) -> None:
        """`largest` is the most tokens over all rows, a power of two."""
        self._largest = largest
        self._alone_s = alone_s
        self._beside_decoding_s = beside_decoding_s
        # By the magnitude of the context, and so the last chunks.
        self._speeds: dict[int, _Speed] = {}
        self._chunks: dict[int, int] = {}
        self._last = _FIRST
        # Over all rows, and what a device that failed has left of the most.
        self._whole = _FIRST
        self._bearable = largest
        self._calm = 0
        self._observed = 0

    def shorten(self) -> None:
        """The device gave up: a quarter of the last chunk is the most, and slowly more again."""
        self._bearable = max(_SMALLEST, self._whole // 4)
        self._calm = 0

    def observe(self, tokens: int, seconds: float, context: int = 0) -> None:
        """Take in one chunk: tokens over all rows, how long they took, and how many there were
        before them in the longest row.
        """
        if tokens <= 0 or seconds <= 0:
            return
        self._calm += 1
        if self._calm >= _CALM:
            self._bearable, self._calm = min(self._largest, 2 * self._bearable), 0
        measured = tokens / seconds
        known = self._tokens_per_s(context)
        if tokens < _TELLING and seconds <= self._beside_decoding_s:
            if known is None:
                return
            measured = max(known, measured)
        self._observed += 1
        self._speeds[_magnitude(context)] = _Speed(measured, context, self._observed)

    def chunk(self, rows: int, decoding: bool, context: int = 0, share_s: float = inf) -> int:
        """Tokens per row of the next chunk, for `rows` sequences in prefill of which the longest
        has come to `context`. `share_s` is what others leave of the bound beside decoding.
        """
        most = self._bearable // max(rows, 1)
        tokens_per_s = self._tokens_per_s(context)
        if tokens_per_s is None:
            return max(_SMALLEST, min(_FIRST, most))
        bound_s = min(self._beside_decoding_s, share_s) if decoding else self._alone_s
        fitting = int(tokens_per_s * bound_s / max(rows, 1))
        # One slow or fast chunk says little: grow by steps, shrink at once.
        here = _magnitude(context)
        last = self._chunks[here] if here in self._fresh and here in self._chunks else self._last
        wanted = min(fitting, last * _GROWTH, most)
        self._last = max(_SMALLEST, 1 << max(wanted, 1).bit_length() - 1)
        self._chunks[here] = self._last
        self._whole = self._last * rows
        return self._last

    def _tokens_per_s(self, context: int) -> float | None:
        """What was measured there, or else the most that other places promise."""
        fresh = self._fresh
        here = fresh.get(_magnitude(context))
        known = fresh.values() if here is None else (here,)
        return max((each.at_least(context) for each in known), default=None)

    @property
    def _fresh(self) -> dict[int, _Speed]:
        oldest = self._observed - _FRESH
        return {at: each for at, each in self._speeds.items() if each.number > oldest}


def _magnitude(context: int) -> int:
    return (context // _FREE_CONTEXT).bit_length()
