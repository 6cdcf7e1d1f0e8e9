"""How long a process may live whose gateway, agent or fellow ranks are gone."""

from __future__ import annotations

from typing import Final

_SHORTEST_S: Final = 3.0
_S_PER_GB: Final = 0.5
_LONGEST_S: Final = 60.0


def grace_s(held_bytes: int) -> float:
    """Then it ends, whatever its engine does: the more it holds, the longer that may take to give
    it back.
    """
    return min(_LONGEST_S, _SHORTEST_S + _S_PER_GB * held_bytes / 1e9)
