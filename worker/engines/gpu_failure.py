"""What Metal says of a command that the GPU gave up, by its kind.

MLX raises it as RuntimeError, at whatever waits next (0.32.0 and later): "[METAL] Command buffer
execution failed: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)."
"""

from __future__ import annotations

import re
from typing import Final

_KIND: Final = re.compile(r"CommandBufferCallbackError(\w+)")
# A command took too long, made the screen wait, or was there when another's was given up. Others,
# as an address that isn't mapped, come again; and where submissions are ignored, all do.
_PASSING: Final = frozenset({"Timeout", "ImpactingInteractivity", "InnocentVictim"})


def passing_kind(error: BaseException) -> str | None:
    """The kind of a failure after which this process can compute on; None: of no such one."""
    found = _KIND.search(str(error)) if isinstance(error, RuntimeError) else None
    return found[1] if found is not None and found[1] in _PASSING else None
