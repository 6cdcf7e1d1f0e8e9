"""mlx-lm's generator without what it does for readers that there are none of here.

The caches of a row that ends are lent, not copied array by array, and each row's log probabilities
aren't cut out of the batch's with every step.
"""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

from mlx_lm.generate import BatchGenerator, GenerationBatch

from worker.prompt_cache.blocks import leaves_of


class RowCaches(NamedTuple):
    """Caches, and which of their rows it is."""

    caches: list[Any]
    place: int


class LendingGenerator(BatchGenerator):  # type: ignore[misc]  # mlx-lm is untyped
    """With a row's last token it gives out what its whole batch had, as `RowCaches`; rows that end
    together have the same. To be used before the next step, which would need that memory twice.

    What is cut into blocks is copied then. Copied before, too, it held up the other rows for longer
    than a step on a GPU, where some ended together.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        # Private, as there is no other way to say so.
        self._generation_batch = _LendingBatch.empty(self.model, self.sampler)


class _LendingBatch(GenerationBatch):  # type: ignore[misc]
    # In this step.
    _lent: list[Any] | None = None
    _rows_logprobs: list[None]

    @property
    def _next_logprobs(self) -> list[None]:
        """In place of each row's: mlx-lm has them computed with the next token.

        They are two operations a row, at the end of a step. MLX returns from `async_eval` when so
        many operations are left at most (100 on a CPU): if these are empty ones, it has nothing to
        do while Python makes the next step, for 1 ms of 18 with 32 sampled rows.
        """
        return self._rows_logprobs

    @_next_logprobs.setter
    def _next_logprobs(self, logprobs: list[Any]) -> None:
        self._rows_logprobs = [None] * len(logprobs)

    def next(self) -> Any:
        try:
            return super().next()
        finally:
            self._lent = None

    def extract_cache(self, idx: int) -> RowCaches:
        if self._lent is None:
            # Without rows that end a batch goes on with other arrays; these stay as they are.
            self._lent = [copy(leaf) for leaf in leaves_of(self.prompt_cache)]
        return RowCaches(self._lent, idx)
