"""Exclude top choices: at times, of several likely tokens all but the least likely are left out.

By p-e-w (https://github.com/oobabooga/text-generation-webui/pull/6335). As in mlx-lm, it looks at
what the filters kept, before the temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx

from worker.sampling.settings import RowSampling, chance


class Xtc:
    """Of the sampled rows of a batch. Whose turn it is at a position is known beforehand: where
    nobody's is, nothing is computed.
    """

    def __init__(self, rows: Sequence[RowSampling], vocabulary: int) -> None:
        self._rows = rows
        self._vocabulary = vocabulary
        self._any = any(each.xtc_probability > 0.0 for each in rows)

    def apply(
        self,
        logprobs: mx.array,
        least_kept: mx.array | None,
        streams: Sequence[int],
        positions: Sequence[int],
    ) -> mx.array | None:
        """Log probabilities (rows, vocabulary) without what is left out; None if nothing is."""
        if not self._any:
            return None
        numbers = zip(self._rows, streams, positions, strict=True)
        turns = [
            row
            for row, (each, stream, position) in enumerate(numbers)
            if each.xtc_probability > 0.0 and chance(stream, position) < each.xtc_probability
        ]
        if not turns:
            return None
        rows = [self._rows[row] for row in turns]
        indices = mx.array(turns, dtype=mx.uint32)
        thresholds = [
            math.log(each.xtc_threshold) if each.xtc_threshold > 0.0 else -math.inf for each in rows
        ]
        changed = mx.array(logprobs)
        changed[indices] = without_top_choices(
            logprobs[indices],
            None if least_kept is None else least_kept[indices],
            mx.array(thresholds)[:, None],
            self._spared(rows),
        )
        return changed

    def _spared(self, rows: Sequence[RowSampling]) -> mx.array | None:
        pairs = [(row, each) for row, of in enumerate(rows) for each in of.xtc_spared]
        if not pairs:
            return None
        spared = mx.zeros((len(rows), self._vocabulary), dtype=mx.bool_)
        places, token_ids = zip(*pairs, strict=True)
        spared[mx.array(places), mx.array(token_ids)] = True
        return spared


def without_top_choices(
    logprobs: mx.array,
    least_kept: mx.array | None,
    log_thresholds: mx.array,
    spared: mx.array | None,
) -> mx.array:
    """Log probabilities (rows, vocabulary), minus infinity for what is left out.

    `least_kept`, `log_thresholds`: (rows, 1). `spared`: (rows, vocabulary), true for what is never
    left out.
    """
    kept = logprobs
    if least_kept is not None:
        kept = mx.where(logprobs >= least_kept, logprobs, -math.inf)
    likely = kept - mx.logsumexp(kept, axis=-1, keepdims=True) > log_thresholds
    least_likely = mx.where(likely, logprobs, math.inf).min(axis=-1, keepdims=True)
    excluded = logprobs > least_likely
    if spared is not None:
        excluded = excluded & ~spared
    return mx.where(excluded, -math.inf, logprobs)
