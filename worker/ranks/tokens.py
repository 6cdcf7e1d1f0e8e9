"""The tokens of a step, the same in all ranks: rank 0 chooses them."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from worker.mlx_lm.generator import Sampler


def leading(sampler: Sampler, group: Any) -> Sampler:
    """Samples, and tells the other ranks what. It stays a part of the computation: nobody waits for
    a token that the next step may begin without.
    """

    def sample(logprobs: mx.array) -> mx.array:
        chosen = sampler(logprobs).astype(mx.uint32)
        return mx.distributed.all_sum(chosen, group=group)

    return sample


def following(group: Any) -> Sampler:
    """Gets what rank 0 has chosen: a sum to which this one adds nothing."""

    def sample(logprobs: mx.array) -> mx.array:
        nothing = mx.zeros((logprobs.shape[0],), dtype=mx.uint32)
        # Behind everything else of this step, as in rank 0: collective operations meet in order.
        (behind,) = mx.depends([nothing], [logprobs])
        return mx.distributed.all_sum(behind, group=group)

    return sample
