"""Whose log probabilities mlx-lm's BatchGenerator hands to a sampler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class RowOrder:
    """The rows of each call, in their order.

    mlx-lm samples at most twice in a step: for the rows that decode, in the order of their
    responses; and then for those whose prompt has just ended, in the order in which they came.
    """

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._decoding: list[int] = []
        # In the order in which they came.
        self._before: dict[int, None] = {}

    def insert(self, uid: int) -> None:
        self._before[uid] = None

    def remove(self, uids: Iterable[int]) -> None:
        for uid in uids:
            self._before.pop(uid, None)
            if uid in self._decoding:
                self._decoding.remove(uid)

    def observe(self, prompt_responses: Iterable[Any], responses: Iterable[Any]) -> None:
        """What a step gave.

        Raises:
            RuntimeError: it was about other rows than those that were sampled.
        """
        responses = list(responses)
        if [each.uid for each in responses] != self._decoding:
            raise RuntimeError("mlx-lm answers its rows in another order than before.")
        self._decoding = [each.uid for each in responses if each.finish_reason is None]
        for each in prompt_responses:
            if each.end_of_prompt:
                del self._before[each.uid]
                self._decoding.append(each.uid)

    def __call__(self) -> Sequence[int]:
        # mlx-lm doesn't tell whose prompt has ended until the step is over. While it samples these
        # rows they are in none of its lists, and otherwise every row is in one.
        found = self._generator._find_uids(self._before) if self._before else {}
        return [uid for uid in self._before if uid not in found] or self._decoding
