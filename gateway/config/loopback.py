"""The names of this machine that no other one can reach."""

from __future__ import annotations

from typing import Final

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
