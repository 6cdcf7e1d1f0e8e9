"""An account of memory in units, driven by hand: what a gateway and its workers would tell it."""

from __future__ import annotations

from gateway.memory.admission import Admission
from gateway.memory.allocation import MemoryNeed, WorkerReading
from gateway.memory.ledger import Decision, LimitChange

# Above what the account takes for noise.
UNIT = 64_000_000
BUDGET = 100
PATIENCE_S = 10.0
# Long after anything was loaded: no place is kept any more.
LATER = 100.0


class Account(Admission):
    """Sizes are units here."""

    def __init__(self, budget: int = BUDGET, spare: int = 0) -> None:
        super().__init__(budget * UNIT, PATIENCE_S, spare * UNIT)

    def claim(
        self,
        name: str,
        floor: int,
        priority: int = 0,
        now: float = LATER,
        *,
        pinned: bool = False,
    ) -> None:
        self.ask(name, floor * UNIT, priority, now, pinned=pinned)

    def load(
        self,
        name: str,
        floor: int,
        *,
        priority: int = 0,
        busy: bool = False,
        last_used: float = LATER,
        reload_s: float = 0.0,
        pinned: bool = False,
        at: float = 0.0,
        used: int = 0,
        wanted: int | None = None,
        least: int = 0,
        held: int = 0,
        prompt: int = 0,
    ) -> None:
        """Load a model that fits; with something `wanted` it borrows that, and holds it."""
        self.claim(name, floor, priority, at, pinned=pinned)
        assert name in {item.model_id for item in self.decide(at)}
        self.ready(name, at, reload_s=reload_s)
        self.record_use(name, priority=priority, busy=busy, last_used=last_used)
        self.need(name, used, wanted, least, held=held, prompt=prompt)
        self.obey(self.decide(at))
        self.footprint(name, max(floor, used))

    def need(
        self,
        name: str,
        used: int,
        wanted: int | None = None,
        least: int = 0,
        *,
        held: int = 0,
        prompt: int = 0,
        cache: int = 0,
        cache_wanted: int = 0,
    ) -> None:
        """As its worker says, which keeps to the limit that it kept to."""
        allocation = self.ledger.allocation(name)
        assert allocation is not None
        wanted = used if wanted is None else wanted
        need = MemoryNeed(
            used * UNIT,
            wanted * UNIT,
            least * UNIT,
            held,
            prompt,
            cache * UNIT,
            cache_wanted * UNIT,
        )
        self.record_need(name, need, allocation.obeyed_bytes)

    def footprint(self, name: str, size: float) -> None:
        """As a reading says that begins now."""
        allocation = self.ledger.allocation(name)
        assert allocation is not None
        self.record(name, reading_of(int(size * UNIT), allocation.obeyed_bytes))

    def grow_beside(self, name: str, more: int) -> None:
        """As a reading says of a worker that holds so much more beside MLX's account."""
        allocation = self.ledger.allocation(name)
        size = 0 if allocation is None else allocation.footprint_bytes
        limit = 0 if allocation is None else allocation.read_at_bytes
        self.record(name, WorkerReading(size, size, limit, more * UNIT))

    def obey(self, decisions: list[Decision]) -> None:
        """Every worker keeps to the limit that it was told."""
        for decision in decisions:
            if isinstance(decision, LimitChange):
                allocation = self.ledger.allocation(decision.model_id)
                assert allocation is not None
                self.record_need(decision.model_id, allocation.need, decision.limit_bytes)

    def limit(self, name: str) -> float:
        allocation = self.ledger.allocation(name)
        assert allocation is not None
        return allocation.limit_bytes / UNIT

    @property
    def free(self) -> float:
        return self.ledger.free_bytes / UNIT


def reading_of(footprint_bytes: int, limit_bytes: int) -> WorkerReading:
    """A reading that began while the worker kept to this limit."""
    return WorkerReading(footprint_bytes, footprint_bytes, limit_bytes)


def lends(name: str, size: float) -> LimitChange:
    return LimitChange(name, int(size * UNIT), recall=False)


def recalls(name: str, size: float) -> LimitChange:
    return LimitChange(name, int(size * UNIT), recall=True)
