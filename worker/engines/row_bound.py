"""The most rows of a batch: so many as make it faster."""

from __future__ import annotations

from typing import Final

from worker.guesses.costs import StepCosts

# The rows of a batch before anything was measured, and the most rows that are tried.
_FIRST: Final = 32
MOST_ROWS: Final = 256
# Twice as many rows must make this many times the tokens a second.
_WORTH: Final = 1.05


def most_rows(costs: StepCosts) -> int:
    """The most rows that are worth a place in the batch. The number is doubled as long as this
    makes more tokens a second; a doubling that was not measured is tried.
    """
    rows = _FIRST
    while rows < MOST_ROWS:
        gain = costs.gain(2 * rows)
        if gain is None:
            before = costs.gain(rows)
            return rows if before is None or before < _WORTH else 2 * rows
        if gain < _WORTH:
            return rows
        rows *= 2
    return rows
