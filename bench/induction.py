"""The weights of an induction head, for a Qwen3 of any size.

In the first layer each head looks a fixed number of tokens back. So in the second layer each
position knows its last tokens, and looks for the latest position before which the same tokens
stand. The token there is the next one. All further layers add zero.

A position's vector has slots of one width: slot 0 holds the code of the token itself, slot j that
of the token j places before, and the slot behind the last one the code of the next token. Then come
marks, in the same order of places. A code is a row of +1 and -1. Nearly all weights are +c, 0 or
-c in each group of 64 if a head has 128 dimensions, so they survive quantization.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]

# So large that most pairs of a head's dimensions hardly turn within the context.
THETA: Final = 1e20
CONTEXT: Final = 32768

# The score of a key that equals its query; that of an unrelated key is about 0.
_SHARPNESS: Final = 600.0
# The share of that score by which later keys are told from earlier ones, and for marks.
_LATENESS: Final = 0.12
_LATENESS_OF_MARKS: Final = 0.25
# How much less an earlier token counts than the next one.
_FADING: Final = 0.9
# How much more a mark counts than all codes together, next to it. It counts half as much with each
# further token, so that the mark of a short message before doesn't count.
_DOMINANCE: Final = 64.0
# The logit of the next token; those of others are about 0.
_LOGITS: Final = 40.0
# Kinds of marks. The first three are kept for each place.
_ANSWERS, _SHOWS, _ASKS, _BARS = range(4)


class Marks(NamedTuple):
    """Tokens with a meaning: an answer begins after `answer`, and copies what comes after the last
    `result`; without one, after the last `question`. `barrier` is never copied.
    """

    answer: int
    result: int
    question: int
    barrier: int


class Sizes(NamedTuple):
    vocabulary: int
    hidden: int
    heads: int
    kv_heads: int
    head: int

    @property
    def code(self) -> int:
        """Numbers in the code of a token."""
        return self.head // 2

    @property
    def remembered(self) -> int:
        """How many tokens are compared: as many as have a head and a slot, sixteen at most."""
        fitting = (self.hidden - 2 * self.code - 5) // (self.code + 3)
        return min(self.heads, fitting, 16)

    def slot(self, place: int) -> slice:
        return slice(place * self.code, (place + 1) * self.code)

    @property
    def next_token(self) -> slice:
        return self.slot(self.remembered + 1)

    def mark(self, kind: int, place: int) -> int:
        return (self.remembered + 2) * self.code + kind * (self.remembered + 1) + place

    @property
    def barrier(self) -> int:
        return self.mark(_BARS, 0)

    @property
    def constant(self) -> int:
        """The dimension that is 1 in all vectors."""
        return self.hidden - 1


class InductionHead:
    """Makes the weights of the embedding, of the first two layers, and of the head, as float32.

    Raises:
        ValueError: vectors of this size remember fewer than eight tokens.
    """

    def __init__(self, sizes: Sizes, marks: Marks) -> None:
        if sizes.remembered < 8:
            raise ValueError(f"{sizes} has room for {sizes.remembered} tokens; 8 are needed.")
        self._sizes = sizes
        self._marks = marks
        self._random = np.random.default_rng(1)
        self._codes = self._signs(sizes.vocabulary, sizes.code)
        half = sizes.head // 2
        turns = THETA ** (-np.arange(half) / half)
        self._turns = turns
        # A quarter of a turn within the context, or a little less.
        self._late = int(np.argmax(turns <= math.pi / 2 / CONTEXT))
        still = np.arange(int(np.argmax(turns * CONTEXT < 0.05)), half)
        self._still = np.concatenate([still, still + half])

    def embedding(self) -> Matrix:
        made = self._zeros(self._sizes.vocabulary, self._sizes.hidden)
        made[:, self._sizes.slot(0)] = self._codes
        made[:, self._sizes.constant] = 1
        made[self._marks.answer, self._sizes.mark(_ANSWERS, 0)] = 1
        made[[self._marks.result, self._marks.question], self._sizes.mark(_SHOWS, 0)] = 1
        made[self._marks.question, self._sizes.mark(_ASKS, 0)] = 1
        made[self._marks.barrier, self._sizes.barrier] = 1
        return made

    def head(self) -> tuple[Matrix, Matrix]:
        """The weights of the last norm and of the head."""
        norm = np.zeros(self._sizes.hidden, np.float32)
        norm[self._sizes.next_token] = self._undo(self._sizes.remembered + 2)
        head = self._zeros(self._sizes.vocabulary, self._sizes.hidden)
        head[:, self._sizes.next_token] = self._codes * (_LOGITS / self._sizes.code)
        return norm, head

    def looking_back(self) -> dict[str, Matrix]:
        """The first layer: query head j - 1 looks j tokens back, and fills slot j."""
        sizes, half = self._sizes, self._sizes.head // 2
        q, k, v, o = self._projections()
        for head in range(sizes.kv_heads):
            k[head, : self._late, sizes.constant] = 1
            v[head, : sizes.code, sizes.slot(0)] = np.eye(sizes.code)
            for kind in (_ANSWERS, _SHOWS, _ASKS):
                v[head, sizes.code + kind, sizes.mark(kind, 0)] = 1
        for place in range(1, sizes.remembered + 1):
            # Keys and queries are turned by their positions, so these agree `place` tokens apart.
            angles = self._turns[: self._late] * place
            q[place - 1, : self._late, sizes.constant] = np.cos(angles)
            q[place - 1, half : half + self._late, sizes.constant] = -np.sin(angles)
            o[sizes.slot(place), place - 1, : sizes.code] = np.eye(sizes.code)
            for kind in (_ANSWERS, _SHOWS, _ASKS):
                o[sizes.mark(kind, place), place - 1, sizes.code + kind] = 1
        return self._layer(1, q, k, v, o)

    def finding(self) -> dict[str, Matrix]:
        """The second layer: its first head compares the tokens up to the query's with those before
        the key's.
        """
        sizes, still = self._sizes, self._still
        q, k, v, o = self._projections()
        norm2 = 0.0
        for place in range(sizes.remembered):
            weight = _FADING**place
            sketch = weight * self._signs(len(still), sizes.code)
            q[0, still, sizes.slot(place)] = sketch
            k[0, still, sizes.slot(place + 1)] = sketch
            norm2 += weight**2 * len(still) * sizes.code
        lateness = _beside(norm2, _LATENESS)
        strength = _DOMINANCE * math.sqrt(norm2 / len(still))
        # The query is a quarter of a turn ahead, so the score falls with the distance.
        q[0, self._late + sizes.head // 2, sizes.constant] = lateness
        k[0, self._late, sizes.constant] = lateness
        for place in range(sizes.remembered):
            here, less = strength / 2**place * self._signs(2, len(still))
            q[0, still, sizes.mark(_ANSWERS, place)] = here
            k[0, still, sizes.mark(_SHOWS, place + 1)] = here
            k[0, still, sizes.mark(_ASKS, place + 1)] = less
            late = _DOMINANCE * _beside(norm2, _LATENESS_OF_MARKS) / 2**place
            q[0, self._late + sizes.head // 2, sizes.mark(_ANSWERS, place)] = late
            k[0, self._late, sizes.mark(_SHOWS, place + 1)] = late
        k[0, still, sizes.barrier] = strength * self._signs(1, len(still))[0]
        v[0, : sizes.code, sizes.slot(0)] = np.eye(sizes.code)
        o[sizes.next_token, 0, : sizes.code] = np.eye(sizes.code)
        return self._layer(sizes.remembered + 1, q, k, v, o)

    def _projections(self) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        heads, kv_heads, head = self._sizes.heads, self._sizes.kv_heads, self._sizes.head
        hidden = self._sizes.hidden
        kv = (kv_heads, head, hidden)
        return (
            self._zeros(heads, head, hidden),
            self._zeros(*kv),
            self._zeros(*kv),
            self._zeros(hidden, heads, head),
        )

    def _layer(self, slots: int, q: Matrix, k: Matrix, v: Matrix, o: Matrix) -> dict[str, Matrix]:
        """The weights of a layer whose input has so many filled slots."""
        hidden, head = self._sizes.hidden, self._sizes.head
        sharp = np.full(head, math.sqrt(_SHARPNESS / math.sqrt(head)), np.float32)
        return {
            "input_layernorm.weight": np.full(hidden, self._undo(slots), np.float32),
            "self_attn.q_norm.weight": sharp,
            "self_attn.k_norm.weight": sharp,
            "self_attn.q_proj.weight": q.reshape(-1, hidden),
            "self_attn.k_proj.weight": k.reshape(-1, hidden),
            "self_attn.v_proj.weight": v.reshape(-1, hidden),
            "self_attn.o_proj.weight": o.reshape(hidden, -1),
        }

    def _undo(self, slots: int) -> float:
        """The root of the mean square of a vector with so many filled slots, which a norm divides
        by.
        """
        return math.sqrt((slots * self._sizes.code + 1) / self._sizes.hidden)

    def _signs(self, rows: int, columns: int) -> Matrix:
        return self._random.choice(np.array([-1, 1], np.float32), (rows, columns))

    @staticmethod
    def _zeros(*shape: int) -> Matrix:
        return np.zeros(shape, np.float32)


def _beside(norm2: float, share: float) -> float:
    """The length of a vector that makes up this share of a sum with one of this squared length."""
    return math.sqrt(norm2 * share / (1 - share))
