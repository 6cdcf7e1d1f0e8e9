"""How many connections a gateway has descriptors for. No I/O."""

from __future__ import annotations

from typing import Final

# The log, the listener, the event loop, ZeroMQ's own, files that are read; and connections that
# are accepted before an earlier one's descriptor is free.
_OWN_FILES: Final = 96
# A worker's output, its log, its record, its endpoint's sockets, and what a reading of it opens.
_FILES_PER_WORKER: Final = 16
# With fewer nobody could ask what is wrong.
_LEAST: Final = 8


def capacity(most: int, files: int, workers: int) -> int:
    """How many connections there may be, where `most` are wanted, so many files may be open, and
    there may be so many workers.
    """
    return max(_LEAST, min(most, files - _OWN_FILES - _FILES_PER_WORKER * workers))
