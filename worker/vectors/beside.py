"""Vectors and text from one model: both engines' steps take turns."""

from __future__ import annotations

from collections.abc import Iterable

from worker.engines.need import Need
from worker.engines.room import Room
from worker.engines.sequence import Broken, Engine, Sequence, Token
from worker.vectors.engine import VectorEngine
from worker.vectors.job import Job


class NoText:
    """The engine of a model that writes none. The gateway sends it no sequences."""

    batching = True
    need = Need(0, 0, 0)
    short = False
    fetching = False
    active = 0
    waiting = 0

    def make_room(self) -> None: ...

    def take_hopeless(self) -> list[Sequence]:
        return []

    def take_broken(self) -> list[Broken]:
        return []

    def add(self, sequence: Sequence) -> None:
        raise TypeError(f"{sequence.request_id} asks for text.")

    def remove(self, request_ids: Iterable[str]) -> None: ...

    def step(self) -> list[Token]:
        return []

    def keep(self) -> None: ...

    def clear_prompts(self) -> int:
        return 0

    def begin_anew(self) -> bool:
        return True

    def close(self) -> None: ...


class WithVectors:
    """An engine for text, and one for vectors that computes a chunk for each of its steps."""

    def __init__(self, text: Engine, vectors: VectorEngine, room: Room) -> None:
        self.batching = text.batching
        self._text = text
        self._vectors = vectors
        self._room = room
        # The next batch found no room.
        self._held = False

    @property
    def need(self) -> Need:
        text = self._text.need
        if not self._vectors.jobs:
            return text
        running_bytes = max(text.used_bytes, self._room.needed_bytes([]))
        wanted_bytes = running_bytes + (0 if self._vectors.computing else self._vectors.next_bytes)
        return text._replace(
            used_bytes=running_bytes if self._vectors.computing else text.used_bytes,
            wanted_bytes=max(text.wanted_bytes, wanted_bytes),
            least_bytes=text.least_bytes or wanted_bytes,
        )

    @property
    def short(self) -> bool:
        return self._text.short or self._held

    @property
    def fetching(self) -> bool:
        return self._text.fetching

    @property
    def active(self) -> int:
        return self._text.active + (0 if self._held else self._vectors.jobs)

    @property
    def waiting(self) -> int:
        return self._text.waiting + (self._vectors.jobs if self._held else 0)

    def make_room(self) -> None:
        self._text.make_room()

    def take_hopeless(self) -> list[Sequence]:
        return self._text.take_hopeless()

    def take_broken(self) -> list[Broken]:
        return self._text.take_broken()

    def add(self, sequence: Sequence) -> None:
        self._text.add(sequence)

    def add_job(self, job: Job) -> None:
        self._vectors.add(job)

    def remove(self, request_ids: Iterable[str]) -> None:
        gone = list(request_ids)
        self._text.remove(gone)
        self._vectors.remove(gone)
        self._held = self._held and self._vectors.jobs > 0

    def step(self) -> list[Token]:
        if self._vectors.jobs:
            self._held = not self._vectors.begin(self._free_bytes())
            if not self._held:
                # Kept prompts may have to give way.
                self._text.make_room()
                self._vectors.step(beside_decoding=self._text.active > 0)
        if self._text.active + self._text.waiting == 0:
            return []
        return self._text.step()

    def keep(self) -> None:
        self._text.keep()

    def clear_prompts(self) -> int:
        return self._text.clear_prompts()

    def begin_anew(self) -> bool:
        self._vectors.begin_anew()
        return self._text.begin_anew()

    def close(self) -> None:
        self._text.close()
        self._vectors.close()

    def _free_bytes(self) -> int | None:
        """What there is beside the sequences that run."""
        if self._room.limit_bytes is None:
            return None
        running_bytes = max(self._text.need.used_bytes, self._room.needed_bytes([]))
        return self._room.limit_bytes - running_bytes
