"""Signals with a meaning between gateway and worker."""

from __future__ import annotations

import signal
from typing import Final

# A worker prints the Python stacks of all its threads, whatever they are stuck in.
DUMP_STACKS: Final = signal.SIGUSR2
