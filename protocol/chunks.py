"""The longest chunk of a prompt that a worker computes: the gateway's estimates count on it."""

from __future__ import annotations

from typing import Final

LARGEST_TOKENS: Final = 2048
# A CPU gains nothing from longer ones, and its attention writes out a score for every pair of a
# chunk's token and an earlier one.
LARGEST_TOKENS_ON_CPU: Final = 256
