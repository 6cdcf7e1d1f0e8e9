"""How likely a model finds a plain text."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import mlx.core as mx

from worker.engines.room import compiles_kernels

TEXT: Final = (
    "The old lighthouse stands at the end of a narrow road, two miles from the nearest village. "
    "For more than a hundred years a family lived there and kept the light. Every evening, before "
    "the sun went down, the father climbed the stairs with a can of oil. His children helped him "
    "to clean the glass, because a dirty glass makes a weak light, and a weak light is no use to "
    "a ship in a storm.\n\n"
    "In the winter of 1911 a fishing boat lost its way in the fog. The captain could not see the "
    "shore, but he saw the light, and so he knew that there were rocks between him and the "
    "harbour. He turned the boat to the west and waited until the morning. When he came to the "
    "village the next day, he walked the two miles to the lighthouse to thank the family. He "
    "brought them a basket of fish and a bottle of wine, and he stayed for dinner.\n\n"
    "Today the light works with electricity, and nobody has to climb the stairs in the evening. A "
    "computer in the city turns it on and off. The house is a small museum, and visitors can read "
    "the letters that the family wrote. One of the letters is from the youngest daughter, who "
    "moved to the city when she was twenty years old. She wrote that she missed the sound of the "
    "sea, and that she could not sleep in a quiet room.\n"
)
_FEW_TOKENS: Final = 12
_SHORT_TOKENS: Final = 96
_LONG_TOKENS: Final = 320
# With a quicker first run the longer text is taken.
_QUICK_S: Final = 2.0


class TooSlowError(Exception):
    """The device is too slow for the text."""


class PlainText:
    """The mean of the negative logarithms of the probabilities that a model gives to the tokens of
    a plain text (its loss, in nats). A device that takes long gets a short text.
    """

    def __init__(
        self,
        model: Any,
        encode: Callable[[str], list[int]],
        first_token: int | None,
        within_s: float,
    ) -> None:
        """`first_token` begins each text of this model; None: it needs none.

        Raises:
            TooSlowError: the loss takes longer than `within_s`.
        """
        self._model = model
        first = [] if first_token is None else [first_token]
        every = first + encode(TEXT)
        if not compiles_kernels():
            # The first run of another device compiles kernels, and tells nothing.
            self._ids = every[:_FEW_TOKENS]
            began_at = time.monotonic()
            self._measure()
            if (time.monotonic() - began_at) * _SHORT_TOKENS / _FEW_TOKENS > within_s:
                raise TooSlowError
        self._ids = every[:_SHORT_TOKENS]
        began_at = time.monotonic()
        self.base, self.highest = self._measure()
        if time.monotonic() - began_at < _QUICK_S:
            self._ids = every[:_LONG_TOKENS]
            self.base, self.highest = self._measure()

    def loss(self) -> float:
        return self._measure()[0]

    def _measure(self) -> tuple[float, float]:
        """The loss, and the largest logit."""
        ids = mx.array([self._ids])
        logits = self._model(ids[:, :-1])[0].astype(mx.float32)
        chosen = mx.take_along_axis(logits, ids[0, 1:, None], axis=-1)[:, 0]
        loss = (mx.logsumexp(logits, axis=-1) - chosen).mean()
        highest = mx.abs(logits).max()
        mx.eval(loss, highest)
        return loss.item(), highest.item()  # type: ignore[return-value]  # MLX types them as complex
