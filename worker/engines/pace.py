"""The length of the chunks in which prompts are computed: bounded in seconds, on any hardware.

On a CPU a chunk of 2,048 tokens of a dense model can take minutes. During a chunk no other stream
gets a token, no cancellation is seen and no progress is reported. The bound in seconds is a share
of `workers.prefill_stall_s`. A chunk is bounded in tokens too, summed over all rows, because its
memory beside the caches grows with its length.

Each token of a prompt looks at all tokens before it, so later tokens take longer. The number of
earlier tokens is the context. Each magnitude of the context has a speed of its own, since the speed
of a short prompt says nothing about a long one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from protocol.life import LARGEST_CHUNK_TOKENS
from worker.system.memory import most_parts

_SMALLEST: Final = 16
_FIRST: Final = 64
_GROWTH: Final = 4
# A shorter chunk that took little time shows mostly the fixed cost of a step. Longer chunks are
# faster.
_TELLING: Final = 64
# A chunk may be longer by so much if it takes the rest of all prompts then. Each step has a fixed
# cost.
_REST: Final = 1.5
# Only the last so many measurements count: other work on the machine changes the speed.
_FRESH: Final = 8
# After so many chunks the bound that a failure of the device has lowered is doubled.
_CALM: Final = 64
# Up to so many earlier tokens, looking at them costs no more than the rest of a token's
# computation, in any model.
_FREE_CONTEXT: Final = 1024


@dataclass(frozen=True)
class _Speed:
    """The speed of a chunk behind `context` tokens. `number` counts measurements."""

    tokens_per_s: float
    context: int
    number: int

    def lower_bound(self, context: int) -> float:
        """A lower bound of the speed behind `context` tokens. It assumes that a token's whole time
        is spent on looking at earlier tokens.
        """
        further = (_FREE_CONTEXT + context) / (_FREE_CONTEXT + self.context)
        return self.tokens_per_s / max(1.0, further)


class PrefillPace:
    """Chooses the lengths of chunks from measured speeds. Lengths are powers of two, so that MLX
    gets few different shapes, unless a chunk takes all that is left.
    """

    def __init__(
        self,
        largest: int = LARGEST_CHUNK_TOKENS,
        alone_s: float = 1.0,
        beside_decoding_s: float = 0.2,
        *,
        pair_elements: int = 0,
        compiles: bool = False,
    ) -> None:
        """`largest`, a power of two, bounds the tokens of a chunk over all rows. A chunk should
        take `alone_s` seconds, or `beside_decoding_s` if rows decode meanwhile. An array of a step
        has `pair_elements` for each token of a chunk and each token that it sees: no array has more
        elements than MLX counts. `compiles`: the device compiles kernels for some numbers of tokens
        when these come for the first time.
        """
        self._largest = largest
        self._pair_elements = pair_elements
        self._alone_s = alone_s
        self._beside_decoding_s = beside_decoding_s
        # Speeds, and the lengths of the last chunks, by the magnitude of the context.
        self._speeds: dict[int, _Speed] = {}
        self._chunks: dict[int, int] = {}
        self._last = _FIRST
        # `_whole` is the tokens of the last chunk over all rows. `_bearable` is the most tokens
        # that the device bears; a failure of the device lowers this bound.
        self._whole = _FIRST
        self._bearable = largest
        self._calm = 0
        self._observed = 0
        self._compiles = compiles
        # The tokens of all chunks that were computed.
        self._seen: set[int] = set()

    def shorten(self) -> None:
        """After a failure of the device, bound chunks to a quarter of the last one. `observe`
        slowly raises this bound again.
        """
        self._bearable = max(_SMALLEST, self._whole // 4)
        self._calm = 0

    def observe(self, tokens: int, seconds: float, context: int = 0) -> bool:
        """Note a chunk that was computed: its tokens over all rows, its seconds, and the number of
        tokens before the chunk in the longest row. Returns whether the seconds show a speed. Where
        kernels are compiled, the first chunk of so many tokens shows none: on an H100 the kernels
        of 64 tokens in 4 bits take 45 s once, and then a chunk takes 0.1 s (MLX 0.32.4).
        """
        if tokens <= 0 or seconds <= 0:
            return False
        is_new = tokens not in self._seen
        self._seen.add(tokens)
        self._calm += 1
        if self._calm >= _CALM:
            self._bearable, self._calm = min(self._largest, 2 * self._bearable), 0
        if self._compiles and is_new:
            return False
        measured = tokens / seconds
        known = self._tokens_per_s(context)
        if seconds <= self._beside_decoding_s:
            if known is None and tokens < _TELLING:
                return True
            # The fixed cost of a step is in it, so a small part of what should fit tells little.
            if known is not None and tokens < known * self._beside_decoding_s / 2:
                measured = max(known, measured)
        self._observed += 1
        self._speeds[_magnitude(context)] = _Speed(measured, context, self._observed)
        return True

    def chunk(
        self,
        rows: int,
        decoding: bool,
        context: int = 0,
        share_s: float = inf,
        left: float = inf,
    ) -> int:
        """The number of tokens that each row computes in the next chunk.

        The chunk is for `rows` prompts. The longest row has seen `context` tokens, and no row has
        more than `left` tokens to compute. With `decoding`, rows that decode wait for the chunk.
        Then `share_s` bounds the chunk, too: the part of `beside_decoding_s` that other batches
        leave.
        """
        scored = most_parts(self._pair_elements * (context + self._largest))
        most = min(self._bearable, scored) // max(rows, 1)
        if self._tokens_per_s(context) is None:
            return max(_SMALLEST, min(_FIRST, most))
        bound_s = min(self._beside_decoding_s, share_s) if decoding else self._alone_s
        fitting = self._fitting_tokens(context, bound_s) // max(rows, 1)
        # A single measurement may be wrong, so lengths grow by steps. They shrink at once.
        magnitude = _magnitude(context)
        last = (
            self._chunks[magnitude]
            if magnitude in self._fresh and magnitude in self._chunks
            else self._last
        )
        wanted = min(fitting, last * _GROWTH, most)
        self._last = max(_SMALLEST, 1 << max(wanted, 1).bit_length() - 1)
        self._chunks[magnitude] = self._last
        chunk = self._last
        if chunk < left <= min(_REST * max(wanted, chunk), most):
            chunk = int(left)
        self._whole = chunk * rows
        return chunk

    def fits_chunk(self, rows: int, tokens: int) -> bool:
        """Whether one chunk takes the whole prompts of so many rows, of `tokens` tokens at most,
        while other rows decode.
        """
        whole = rows * max(_SMALLEST, tokens)
        return whole <= min(self._fitting_tokens(0, self._beside_decoding_s), self._bearable)

    def _fitting_tokens(self, context: int, bound_s: float) -> int:
        """The tokens over all rows that take `bound_s` seconds; as many as in a first chunk if no
        speed was measured lately.
        """
        tokens_per_s = self._tokens_per_s(context)
        return _FIRST if tokens_per_s is None else int(tokens_per_s * bound_s)

    def _tokens_per_s(self, context: int) -> float | None:
        """A lower bound of the speed behind `context` tokens, from the measurement of the same
        magnitude, or else the highest bound from any other. None: nothing was measured lately.
        """
        fresh = self._fresh
        measured = fresh.get(_magnitude(context))
        known = fresh.values() if measured is None else (measured,)
        return max((speed.lower_bound(context) for speed in known), default=None)

    @property
    def _fresh(self) -> dict[int, _Speed]:
        oldest = self._observed - _FRESH
        return {
            magnitude: speed for magnitude, speed in self._speeds.items() if speed.number > oldest
        }


def _magnitude(context: int) -> int:
    return (context // _FREE_CONTEXT).bit_length()
