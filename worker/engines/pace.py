"""How long a chunk of a prompt may be: bounded in seconds, whatever the hardware makes of a token.

On a CPU 2,048 tokens of a dense model can take minutes, and nothing else happens meanwhile: no
other stream gets a token, no cancellation is seen, no progress is reported. A chunk is bounded in
tokens too, over all rows, because its memory beside the caches grows with its length.

The further a prompt has come, the longer each of its tokens takes, because it looks at all tokens
before it. So speeds are kept by how far rows had come: the speed of a short prompt says nothing of
a long one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from protocol.life import LARGEST_CHUNK_TOKENS

_SMALLEST: Final = 16
_FIRST: Final = 64
_GROWTH: Final = 4
# Fewer tokens in a short time: that was the fixed cost of a step, and the speed is higher.
_TELLING: Final = 64
# Measurements so many chunks ago may be out of date: the machine does other things too.
_FRESH: Final = 8
# A length that was too much for the device is tried again after so many chunks.
_CALM: Final = 64
# With so few earlier tokens, looking at them costs no more than the rest of a token, in any model.
_FREE_CONTEXT: Final = 1024


@dataclass(frozen=True)
class _Speed:
    """A measured speed, with the number of its chunk."""

    tokens_per_s: float
    context: int
    number: int

    def at_least(self, context: int) -> float:
        """The least speed behind so many tokens: as if a token cost nothing but looking at earlier
        ones.
        """
        further = (_FREE_CONTEXT + context) / (_FREE_CONTEXT + self.context)
        return self.tokens_per_s / max(1.0, further)


class PrefillPace:
    """Chooses the lengths of chunks from measured speeds. Powers of two keep the number of MLX's
    shapes small.
    """

    def __init__(
        self,
        largest: int = LARGEST_CHUNK_TOKENS,
        alone_s: float = 1.0,
        beside_decoding_s: float = 0.2,
    ) -> None:
        """`largest` is the most tokens over all rows, a power of two."""
        self._largest = largest
        self._alone_s = alone_s
        self._beside_decoding_s = beside_decoding_s
        # By the magnitude of the context. The same for `_chunks`.
        self._speeds: dict[int, _Speed] = {}
        self._chunks: dict[int, int] = {}
        self._last = _FIRST
        # The last chunk over all rows; and the most tokens that the device bears, which is less
        # after a failure.
        self._whole = _FIRST
        self._bearable = largest
        self._calm = 0
        self._observed = 0

    def shorten(self) -> None:
        """The device failed: now a quarter of the last chunk is the most, and slowly more again."""
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
        """Tokens for each row of the next chunk.

        `rows` prompts are computed, and the longest has come to `context`. `share_s` is the part of
        the bound beside decoding that other batches leave.
        """
        most = self._bearable // max(rows, 1)
        tokens_per_s = self._tokens_per_s(context)
        if tokens_per_s is None:
            return max(_SMALLEST, min(_FIRST, most))
        bound_s = min(self._beside_decoding_s, share_s) if decoding else self._alone_s
        fitting = int(tokens_per_s * bound_s / max(rows, 1))
        # One slow or fast chunk says little: lengths grow by steps, and shrink at once.
        here = _magnitude(context)
        last = self._chunks[here] if here in self._fresh and here in self._chunks else self._last
        wanted = min(fitting, last * _GROWTH, most)
        self._last = max(_SMALLEST, 1 << max(wanted, 1).bit_length() - 1)
        self._chunks[here] = self._last
        self._whole = self._last * rows
        return self._last

    def _tokens_per_s(self, context: int) -> float | None:
        """The speed that was measured at this context, or else the highest that the other
        measurements promise.
        """
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
