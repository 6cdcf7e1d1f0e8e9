"""The tier on disk, beside the engine's thread: one thread writes, one reads."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from protocol.prompt_store import Entry, Measured, PromptStore

logger = logging.getLogger("worker")

# What is made faster than it can be written isn't written: it would hold memory meanwhile.
_MOST_PENDING_BYTES: Final = 512_000_000
_MOST_PENDING: Final = 4096
# One that is being written when all is cleared; a disk may hang.
_CLEAR_S: Final = 1.0
# Read and not yet taken over by the engine.
_MOST_READ_BYTES: Final = 256_000_000


@dataclass(eq=False)
class Fetch:
    """Payloads on their way, in the order of `keys`."""

    keys: Sequence[bytes]
    # How often all was cleared before.
    era: int
    # Written by the reading thread, last.
    done: bool = False
    abandoned: bool = field(default=False)


class Arrival(NamedTuple):
    """A payload, and the seconds that it took to read."""

    key: bytes
    payload: bytes
    seconds: float


class _Write(NamedTuple):
    entry: Entry
    parts: list[bytes | memoryview]
    era: int


class Disk:
    """Of one worker. Its methods are for the engine thread and never wait, but the first, `clear`
    and `close`.
    """

    def __init__(
        self, store: PromptStore, owner: str, root: bytes, wake: Callable[[], None]
    ) -> None:
        """Asks the store what is known of the speeds of `root`, the model's. `wake` is called from
        the reading thread when there is something to take over.
        """
        self.known = store.speeds(root)
        self._store = store
        self._owner = owner
        self._root = root
        self._wake = wake
        self._writes: queue.SimpleQueue[_Write | Measured | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[Fetch | None] = queue.SimpleQueue()
        self._arrived: queue.SimpleQueue[tuple[Fetch, Arrival]] = queue.SimpleQueue()
        self._era = 0
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        self._pending_bytes = 0
        self._pending = 0
        self._read_bytes = 0
        self._taken = threading.Event()
        self._closing = False
        self._writer = threading.Thread(target=self._write_all, name="prompt-writer", daemon=True)
        self._reader = threading.Thread(target=self._read_all, name="prompt-reader", daemon=True)
        self._writer.start()
        self._reader.start()

    @property
    def pending_bytes(self) -> int:
        """What waits to be written, or was read and not taken: it holds memory."""
        return self._pending_bytes + self._read_bytes

    def has_room(self, bytes_: int) -> bool:
        return self._pending < _MOST_PENDING and self._pending_bytes + bytes_ <= _MOST_PENDING_BYTES

    def write(self, entry: Entry, parts: list[bytes | memoryview]) -> None:
        with self._lock:
            self._pending += 1
            self._pending_bytes += entry.payload_bytes
        self._writes.put(_Write(entry, parts, self._era))

    def note(self, measured: Measured) -> None:
        """For workers to come."""
        self._writes.put(measured)

    def fetch(self, keys: Sequence[bytes]) -> Fetch:
        fetch = Fetch(keys, self._era)
        self._reads.put(fetch)
        return fetch

    def arrived(self) -> Arrival | None:
        while not self._arrived.empty():
            fetch, arrival = self._arrived.get()
            with self._lock:
                self._read_bytes -= len(arrival.payload)
            self._taken.set()
            if fetch.era == self._era:
                return arrival
        return None

    def look_again(self) -> bool:
        """Whether there is more to take over: then the engine is woken for it."""
        if self._arrived.empty():
            return False
        self._wake()
        return True

    def clear(self) -> None:
        """Forget what waits to be written, and what was read and not taken over. What is being
        written is waited for.
        """
        self._era += 1
        if self._writing.acquire(timeout=_CLEAR_S):
            self._writing.release()

    def close(self, at_most_s: float) -> None:
        """Write what waits, and end."""
        self._closing = True
        self._taken.set()
        self._reads.put(None)
        self._writes.put(None)
        self._writer.join(at_most_s)

    def _write_all(self) -> None:
        while (item := self._writes.get()) is not None:
            if isinstance(item, Measured):
                self._store.note_speeds(self._root, item)
                continue
            with self._writing:
                if item.era == self._era:
                    self._write(item)
            with self._lock:
                self._pending -= 1
                self._pending_bytes -= item.entry.payload_bytes
            del item

    def _write(self, item: _Write) -> None:
        try:
            self._store.write(item.entry, item.parts, self._owner)
        except Exception:
            logger.exception("A prompt could not be stored")

    def _read_all(self) -> None:
        while (fetch := self._reads.get()) is not None:
            try:
                self._read(fetch)
            except Exception:
                logger.exception("Stored prompts could not be read")
            fetch.done = True
            self._wake()

    def _read(self, fetch: Fetch) -> None:
        for key in fetch.keys:
            while self._read_bytes > _MOST_READ_BYTES and not self._closing:
                self._taken.clear()
                self._taken.wait(1.0)
            if fetch.abandoned or self._closing:
                return
            began_at = time.monotonic()
            payload = self._store.read(key)
            if payload is None:
                # What comes after it can't be used without it.
                return
            with self._lock:
                self._read_bytes += len(payload)
            self._arrived.put((fetch, Arrival(key, payload, time.monotonic() - began_at)))
            self._wake()
