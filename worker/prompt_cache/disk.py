"""The queues between the engine and the disk: blocks are written and read on other threads, as
bytes. Files and checksums are in `protocol.prompt_store.payloads`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from protocol.prompt_store.index import Speeds
from protocol.prompt_store.payloads import Entry
from protocol.prompt_store.store import PromptStore

logger = logging.getLogger("worker")
# Blocks that wait to be written hold memory. If they hold so much, further blocks wait their turn.
_MOST_PENDING_BYTES: Final = 512_000_000
_MOST_PENDING: Final = 4096
# `clear` waits at most so long for the write that is under way, since a disk may hang.
_CLEAR_S: Final = 1.0
# If so many bytes wait for the engine, the reading thread pauses.
_MOST_READ_BYTES: Final = 256_000_000
# So many bytes on disk are proven at a time. A request that comes waits for no more than these.
_PROVEN_BYTES: Final = 32_000_000


class Disk:
    """Writes and reads the stored blocks of one worker. Only the engine thread calls the methods.
    Only `__init__`, `clear` and `close` may wait.
    """

    def __init__(
        self, store: PromptStore, owner: str, root: bytes, wake: Callable[[], None]
    ) -> None:
        """Reads the speeds that earlier workers measured for the model whose key is `root`. `owner`
        is the model that written blocks belong to. The threads call `wake` when the engine can take
        over blocks, or hand over further ones.
        """
        self.known = store.speeds(root)
        self._store = store
        self._owner = owner
        self._root = root
        self._wake = wake
        self._writes: queue.SimpleQueue[_Write | _Quarantine | Speeds | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[Fetch | _ProofOrder | None] = queue.SimpleQueue()
        self._arrived: queue.SimpleQueue[tuple[Fetch, Arrival]] = queue.SimpleQueue()
        self._era = 0
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        self._pending_bytes = 0
        self._pending = 0
        self._awaited = False
        self._read_bytes = 0
        self._taken = threading.Event()
        self._closing = False
        self._proof = DiskProof(0, [], more=True)
        self._proving = False
        # Blocks on disk up to this number are proven.
        self._proven_number = 0
        self._writer = threading.Thread(target=self._write_all, name="prompt-writer", daemon=True)
        self._reader = threading.Thread(target=self._read_all, name="prompt-reader", daemon=True)
        self._writer.start()
        self._reader.start()

    @property
    def pending_bytes(self) -> int:
        """The memory of blocks that wait to be written, or wait for the engine after they were
        read.
        """
        return self._pending_bytes + self._read_bytes

    def has_room(self, bytes_: int) -> bool:
        """Whether a block of so many bytes can be written now. If not, the writing thread calls
        `wake` when half of what waits is written.
        """
        with self._lock:
            pending_bytes = self._pending_bytes + bytes_
            room = self._pending < _MOST_PENDING and pending_bytes <= _MOST_PENDING_BYTES
            self._awaited = self._awaited or not room
        return room

    def write(self, entry: Entry, parts: list[bytes | memoryview]) -> None:
        with self._lock:
            self._pending += 1
            self._pending_bytes += entry.payload_bytes
        self._writes.put(_Write(entry, parts, self._era))

    def quarantine(self, keys: Sequence[bytes]) -> None:
        """Let these blocks and all that follow them not be found on disk any more, as soon as the
        blocks that wait before are written.
        """
        self._writes.put(_Quarantine(keys))

    def prove(self) -> DiskProof:
        """What was proven since the last call. Has the next blocks of the model read and compared
        with their checksums, behind the blocks that are awaited.
        """
        with self._lock:
            proof, self._proof = self._proof, DiskProof(0, [], more=self._proof.more)
            if not self._proving:
                self._proving = True
                self._reads.put(_ProofOrder())
        return proof

    def write_speeds(self, measured: Speeds) -> None:
        """Keep measured speeds for later workers."""
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
        """Whether more blocks can be taken over. If so, wake the engine for them."""
        if self._arrived.empty():
            return False
        self._wake()
        return True

    def clear(self) -> None:
        """Drop blocks that wait to be written or taken over. Waits until no write is under way."""
        self._era += 1
        if self._writing.acquire(timeout=_CLEAR_S):
            self._writing.release()

    def close(self, at_most_s: float) -> None:
        """Write the blocks that wait, for at most `at_most_s` seconds, and end both threads."""
        self._closing = True
        self._taken.set()
        self._reads.put(None)
        self._writes.put(None)
        self._writer.join(at_most_s)

    def _write_all(self) -> None:
        while (item := self._writes.get()) is not None:
            if isinstance(item, Speeds):
                self._store.record_speeds(self._root, item)
                continue
            if isinstance(item, _Quarantine):
                self._store.quarantine(item.keys)
                continue
            with self._writing:
                if item.era == self._era:
                    self._write(item)
            with self._lock:
                self._pending -= 1
                self._pending_bytes -= item.entry.payload_bytes
                half = self._pending_bytes <= _MOST_PENDING_BYTES // 2
                wakes = self._awaited and half and self._pending <= _MOST_PENDING // 2
                self._awaited = self._awaited and not wakes
            del item
            if wakes:
                self._wake()

    def _write(self, item: _Write) -> None:
        try:
            self._store.write(item.entry, item.parts, self._owner)
        except Exception:
            logger.exception("A prompt could not be stored")

    def _read_all(self) -> None:
        while (fetch := self._reads.get()) is not None:
            if isinstance(fetch, _ProofOrder):
                self._prove()
                continue
            try:
                self._read(fetch)
            except Exception:
                logger.exception("Stored prompts could not be read")
            fetch.done = True
            self._wake()

    def _prove(self) -> None:
        proof = self._store.prove(self._owner, self._proven_number, _PROVEN_BYTES)
        with self._lock:
            self._proving = False
            self._proven_number = proof.last_number or 0
            self._proof = DiskProof(
                self._proof.blocks + proof.blocks,
                [*self._proof.wrong, *proof.wrong],
                more=proof.last_number is not None,
            )

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
                # Blocks behind a missing block can't be used.
                return
            with self._lock:
                self._read_bytes += len(payload)
            self._arrived.put((fetch, Arrival(key, payload, time.monotonic() - began_at)))
            self._wake()


@dataclass(eq=False)
class Fetch:
    """An order to read the blocks with these keys, in the order of `keys`."""

    keys: Sequence[bytes]
    # How often `clear` was called before this order.
    era: int
    # The reading thread sets this at its end.
    done: bool = False
    abandoned: bool = field(default=False)


class Arrival(NamedTuple):
    """The bytes of a block that was read, and the seconds that the read took."""

    key: bytes
    payload: bytes
    seconds: float


class _Write(NamedTuple):
    entry: Entry
    parts: list[bytes | memoryview]
    era: int


class DiskProof(NamedTuple):
    """So many `blocks` on disk were compared with their checksums, and those with the keys `wrong`
    differ. `more`: not all blocks of the model have been compared yet.
    """

    blocks: int
    wrong: list[bytes]
    more: bool


class _ProofOrder(NamedTuple):
    """An order to prove the next blocks on disk."""


class _Quarantine(NamedTuple):
    keys: Sequence[bytes]
