"""Short prompts, none of them twice, so that no prompt cache can answer for the model."""

from __future__ import annotations

import itertools


class FreshPrompts:
    def __init__(self) -> None:
        # They differ from the first token on: caches look for a common beginning.
        self._numbers = itertools.count(1000)

    def take(self, count: int) -> list[str]:
        return [
            f"{number} ships set out to sea, and the captain said"
            for number in itertools.islice(self._numbers, count)
        ]
