"""How long a chunk of prefill may be: a bound in seconds, whatever the hardware makes of a token.

On a CPU 2,048 tokens of a dense model can take minutes, and nothing else happens meanwhile: no
other stream gets a token, no cancellation is seen, no progress is reported. It is bounded in tokens
too, over all rows, since what a chunk takes beside the caches grows with its length.
"""

from __future__ import annotations

from typing import Final

from protocol.chunks import LARGEST_TOKENS

_SMALLEST: Final = 16
_FIRST: Final = 64
_GROWTH: Final = 4
# Fewer tokens in a short time: that was the step's fixed cost, and the speed is higher.
_TELLING: Final = 64


class PrefillPace:
    """Chooses chunk lengths from the measured speed. Powers of two keep MLX's shapes few."""

    def __init__(
        self, largest: int = LARGEST_TOKENS, alone_s: float = 1.0, beside_decoding_s: float = 0.2
    ) -> None:
        """`largest` is the most tokens over all rows, a power of two."""
        self._largest = largest
        self._alone_s = alone_s
        self._beside_decoding_s = beside_decoding_s
        self._tokens_per_s: float | None = None
        self._last = _FIRST

    def observe(self, tokens: int, seconds: float) -> None:
        """Take in one chunk: tokens over all rows, and how long they took."""
        if tokens <= 0 or seconds <= 0:
            return
        measured = tokens / seconds
        if tokens >= _TELLING or seconds > self._beside_decoding_s:
            self._tokens_per_s = measured
        elif self._tokens_per_s is not None:
            self._tokens_per_s = max(self._tokens_per_s, measured)

    def chunk(self, rows: int, decoding: bool) -> int:
        """Tokens per row of the next chunk, for `rows` sequences in prefill."""
        if self._tokens_per_s is None:
            return _FIRST
        bound_s = self._beside_decoding_s if decoding else self._alone_s
        fitting = int(self._tokens_per_s * bound_s / max(rows, 1))
        # One slow or fast chunk says little: grow by steps, shrink at once.
        wanted = min(fitting, self._last * _GROWTH, self._largest // max(rows, 1))
        self._last = max(_SMALLEST, 1 << max(wanted, 1).bit_length() - 1)
        return self._last
