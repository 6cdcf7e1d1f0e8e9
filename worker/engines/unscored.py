"""mlx-lm's generator without each row's log probabilities, which nobody reads: whoever wants scores
has them made of the logits.
"""

from __future__ import annotations

from typing import Any, ClassVar

from mlx_lm.generate import BatchGenerator, GenerationBatch

# With which what a BatchGenerator does to the wired limit does nothing.
import worker.wiring  # noqa: F401


class UnscoredBatch(GenerationBatch):  # type: ignore[misc]  # mlx-lm is untyped
    """mlx-lm cuts each row's out of the batch's at the end of a step, two operations a row.

    On a CPU MLX returns from `async_eval` once 100 small tasks are left, each operation being two
    (`MAX_ACTIVE_TASKS` in its transforms.cpp, `DISPATCHES_PER_TASK` in its encoder.h). If these do
    nothing, it has nothing to do while Python makes the next step.
    """

    _unread: list[None]

    # Private, as there is no other way to say so. mlx-lm has an array for each row here.
    @property
    def _next_logprobs(self) -> list[None]:
        return self._unread

    @_next_logprobs.setter
    def _next_logprobs(self, logprobs: list[Any]) -> None:
        self._unread = [None] * len(logprobs)


class UnscoredGenerator(BatchGenerator):  # type: ignore[misc]
    batch_type: ClassVar[type[UnscoredBatch]] = UnscoredBatch

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        self._generation_batch = self.batch_type.empty(self.model, self.sampler)
