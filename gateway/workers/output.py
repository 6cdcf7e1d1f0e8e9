"""What a process prints, line by line, to its end or until another gateway goes on reading."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator
from typing import Final

_LONGEST_LINE_BYTES: Final = 8192


class Output:
    """Owns the pipe. One thread reads; `stop` may come from another."""

    def __init__(self, descriptor: int, begun: bytes = b"") -> None:
        """`begun` is what was read of a line already."""
        self.descriptor = descriptor
        self.rest = begun
        self._stop_read, self._stop_write = os.pipe()

    def lines(self) -> Iterator[str]:
        """Lines are cut at a bound, since a worker may print without ever ending one."""
        poller = select.poll()
        poller.register(self.descriptor, select.POLLIN)
        poller.register(self._stop_read, select.POLLIN)
        try:
            while not any(ready == self._stop_read for ready, _ in poller.poll()):
                if not (read := os.read(self.descriptor, _LONGEST_LINE_BYTES)):
                    if self.rest:
                        yield from _split(self.rest)
                    return
                *whole, self.rest = (self.rest + read).split(b"\n")
                for line in whole:
                    yield from _split(line)
                if len(self.rest) >= _LONGEST_LINE_BYTES:
                    line, self.rest = self.rest, b""
                    yield from _split(line)
        finally:
            self._close()

    def stop(self) -> None:
        """Let `lines` end soon; the rest of a line that was begun is in `rest` then."""
        # They may have ended.
        with contextlib.suppress(OSError):
            os.write(self._stop_write, b"\0")

    def _close(self) -> None:
        for each in (self.descriptor, self._stop_read, self._stop_write):
            os.close(each)
        self._stop_write = -1


def _split(line: bytes) -> Iterator[str]:
    # A progress bar draws itself anew after every carriage return.
    yield from line.decode("utf-8", "replace").rstrip("\r\n").split("\r")
