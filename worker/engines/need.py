"""What an engine could use of memory."""

from __future__ import annotations

from typing import NamedTuple


class Need(NamedTuple):
    """As limits of the whole process, in bytes; 0 while there is nothing to do.

    `used_bytes` holds what runs now; with `wanted_bytes` everything that waits could run too; with
    less than `least_bytes` not even the first sequence can. `prompt` numbers the prompt that the
    first sequence is computing; 0 if it computes none. Beside that the prompt cache has
    `cache_bytes`, and could use `cache_wanted_bytes`.
    """

    used_bytes: int
    wanted_bytes: int
    least_bytes: int
    prompt: int = 0
    cache_bytes: int = 0
    cache_wanted_bytes: int = 0
