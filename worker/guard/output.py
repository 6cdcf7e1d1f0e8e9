"""The output of a command's processes, with a bound on its rate. Without the bound a flood of
output would occupy the gateway's log and the disk.
"""

from __future__ import annotations

import os
import re
import threading
import time
from typing import Final

_READ_BYTES: Final = 64 << 10
_BYTES_PER_S: Final = 256 << 10
# A line costs the gateway about as much time as so many bytes.
_LINE_BYTES: Final = 128
_AT_ONCE_BYTES: Final = 1 << 20
_TAIL_BYTES: Final = 2000
_REST_S: Final = 0.5


class OutputBound:
    """Lets so many bytes a second pass, and more at once after a pause."""

    def __init__(self, now: float) -> None:
        self._left = float(_AT_ONCE_BYTES)
        self._at = now
        self._dropped = 0

    def limit(self, output: bytes, now: float) -> bytes:
        """The bytes to print now. A notice of the bytes that were left out comes first."""
        self._left = min(_AT_ONCE_BYTES, self._left + (now - self._at) * _BYTES_PER_S)
        self._at = now
        cost_bytes = len(output) + _LINE_BYTES * (output.count(b"\n") + output.count(b"\r"))
        if self._left < cost_bytes or (self._dropped and self._left < _AT_ONCE_BYTES / 2):
            self._dropped += len(output)
            return b""
        self._left -= cost_bytes
        notice = b""
        if self._dropped:
            notice = b"\n-- %d KiB of output were too much at once --\n" % (self._dropped >> 10)
            self._dropped = 0
        return notice + output


class CommandOutput:
    """Prints what comes from the descriptor `source`, in a thread, until its writers are gone. It
    leaves out lines about requests for the path `health`, which the guard sends all the time.
    """

    def __init__(self, source: int, health: str) -> None:
        self._source = source
        self._request = b"GET " + health.encode()
        self._probe = re.compile(rb"\b%b[ \"]" % re.escape(self._request))
        self._tail = b""
        self._thread = threading.Thread(target=self._print, name="output", daemon=True)
        self._thread.start()

    def last_line(self) -> str:
        """The last line that isn't empty. Waits a moment for the rest of the output."""
        self._thread.join(_REST_S)
        lines = self._without_probes(self._tail).decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _without_probes(self, output: bytes) -> bytes:
        # To look at each line of a flood would take longer than the flood.
        if self._request not in output:
            return output
        lines = output.splitlines(keepends=True)
        return b"".join(line for line in lines if self._probe.search(line) is None)

    def _print(self) -> None:
        bound = OutputBound(time.monotonic())
        while output := os.read(self._source, _READ_BYTES):
            self._tail = (self._tail + output)[-_TAIL_BYTES:]
            left = memoryview(self._without_probes(bound.limit(output, time.monotonic())))
            while left:
                left = left[os.write(1, left) :]
        os.close(self._source)
