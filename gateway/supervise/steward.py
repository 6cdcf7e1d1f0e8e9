"""Memory on behalf of the models: asks admission for them, and does what it decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from gateway.config.models import find_folder
from gateway.config.sizes import format_size
from gateway.dispatch.refusal import Refusal
from gateway.events import EventLog
from gateway.logs.line import about
from gateway.memory import explain
from gateway.memory.admission import Admission, Admit, Claim, Decision, Evict, Refuse
from gateway.memory.estimate.estimate import PROCESS_BYTES, Estimate
from gateway.memory.estimate.fitting import fitting, guess, with_margin
from gateway.memory.estimate.learned import Learned, Measured
from gateway.memory.estimate.weights import EstimateError
from gateway.memory.reading import Pressure
from gateway.memory.stranded import Reading, Stranded, moved
from gateway.memory.stranded_record import StrandedRecord
from gateway.supervise.model import Model
from gateway.supervise.tasks import Tasks

logger = logging.getLogger(__name__)

# A worker that holds less than this part of its weights and process hasn't read them all.
_PLAUSIBLE: Final = 0.9
# Until what was given back can show in the machine's figures.
_BETWEEN_RELIEFS_S: Final = 10.0


class Tenant(Protocol):
    """A model as its memory sees it."""

    model: Model

    @property
    def priority(self) -> int: ...

    @property
    def busy(self) -> bool:
        """Requests run or wait."""

    @property
    def last_used(self) -> float:
        """On the event loop's clock."""

    @property
    def reload_s(self) -> float:
        """How long its last load took."""

    @property
    def waits_for_memory(self) -> bool: ...

    def note_wait(self, reason: str) -> None:
        """Why there is no room for it yet."""

    def admitted(self, granted_bytes: int) -> None: ...

    def has_no_room(self, refusal: Refusal) -> None: ...

    def evict(self, reason: str) -> None: ...

    def lost_memory(self, missing_bytes: int) -> None:
        """So much of what its last worker held did not come back."""


class Steward:
    """Everything runs on the event loop; files are read beside it."""

    def __init__(
        self,
        admission: Admission,
        learned: Learned,
        stranded: Stranded,
        on_stranded: Callable[[StrandedRecord], None],
        events: EventLog,
    ) -> None:
        """`on_stranded` keeps the figures for the next gateway; it is called off the loop."""
        self.admission = admission
        self.admission.stranded_bytes = stranded.bytes
        self._stranded = stranded
        self._on_stranded = on_stranded
        self._kept = StrandedRecord(stranded.bytes)
        self.estimates: dict[str, Estimate] = {}
        self._learned = learned
        self._events = events
        self._tenants: dict[str, Tenant] = {}
        self._keys: dict[str, str] = {}
        self._tasks = Tasks("memory")
        self._loop = asyncio.get_running_loop()
        self._decision: asyncio.Handle | None = None
        self._relieved_at = float("-inf")

    def register(self, tenants: Iterable[Tenant]) -> None:
        self._tenants = {each.model.id: each for each in tenants}

    def configure(self, budget_bytes: int, patience_s: float, spare_bytes: int) -> None:
        """Other limits. Models that they leave no room for have to go, busy ones too: an operator
        wants it so.
        """
        self.admission.configure(budget_bytes, patience_s, spare_bytes)
        self._note_all()
        for model_id in self.admission.shrink():
            self._tenants[model_id].evict(f"the budget is {format_size(budget_bytes)} now")
        self.decide_soon()

    async def close(self) -> None:
        if self._decision is not None:
            self._decision.cancel()
        await self._tasks.cancel_all()

    # From the tenants

    def ask(self, tenant: Tenant) -> None:
        """It wants to be loaded; the answer comes by `admitted` or `has_no_room`."""
        self._tasks.start(self._ask(tenant), f"memory for {tenant.model.id}")

    def withdraw(self, model_id: str) -> None:
        self.admission.withdraw(model_id)
        self.decide_soon()

    def ready(self, tenant: Tenant) -> None:
        self.admission.ready(
            tenant.model.id,
            self._loop.time(),
            pinned=tenant.model.settings.pinned,
            reload_s=tenant.reload_s,
        )

    def pin(self, tenant: Tenant) -> None:
        """Its settings may have changed."""
        self.admission.pin(tenant.model.id, pinned=tenant.model.settings.pinned)
        self.decide_soon()

    def ending(self, model_id: str) -> None:
        self.admission.ending(model_id)
        self.decide_soon()

    def gone(self, model_id: str, held_bytes: int) -> None:
        """Its process has ended, and had held so much."""
        self.admission.gone(model_id)
        if held_bytes:
            self._stranded.ended(model_id, held_bytes, self._loop.time())
        self.decide_soon()

    def observe(self, reading: Reading) -> None:
        """Compare the machine's memory with the account."""
        for finding in self._stranded.observe(reading):
            self._events.emit(
                "return",
                finding.model_id,
                held_bytes=finding.held_bytes,
                missing_bytes=finding.missing_bytes,
                unowned_bytes=reading.unowned_bytes,
            )
            if finding.missing_bytes:
                tenant = self._tenants.get(finding.model_id)
                if tenant is not None:
                    tenant.lost_memory(finding.missing_bytes)
        if self._stranded.bytes != self.admission.stranded_bytes:
            self.admission.stranded_bytes = self._stranded.bytes
            self._events.emit("stranded", None, stranded_bytes=self._stranded.bytes)
            self.decide_soon()
        self._keep_stranded()

    def note_footprint(self, model_id: str, footprint_bytes: int) -> None:
        self.admission.note_footprint(model_id, footprint_bytes)

    def working_bytes(self, model_id: str) -> int:
        """What activations may take of a model's grant."""
        estimated = self.estimates.get(model_id)
        return 0 if estimated is None else estimated.working_bytes

    def learn(self, model_id: str, idle_bytes: int, full_bytes: int | None) -> None:
        """Remember what it took, for the next load. `full_bytes` None leaves what is known."""
        key, estimated = self._keys.get(model_id), self.estimates.get(model_id)
        if key is None or estimated is None:
            return
        if idle_bytes < estimated.calculated_idle_bytes * _PLAUSIBLE:
            # Not all of the weights are in memory yet: a grant for less would be broken at once.
            return
        known = self._learned.get(key)
        if full_bytes is None and known is not None:
            full_bytes = known.full_bytes
        measured = Measured(idle_bytes, full_bytes)
        if measured != known:
            self._tasks.start(asyncio.to_thread(self._learned.put, key, measured), "learn")

    def decide_soon(self) -> None:
        """Not at once: whoever calls is in the middle of a decision of its own."""
        if self._decision is None:
            self._decision = self._loop.call_soon(self._decide_now)

    def tick(self, pressure: Pressure | None) -> None:
        """To be called a few times a second: time alone gives rights to those that wait, and the
        machine may be short of memory, whoever takes it.
        """
        self._decide_now()
        now = self._loop.time()
        if pressure in ("warn", "critical") and now - self._relieved_at >= _BETWEEN_RELIEFS_S:
            self._relieved_at = now
            self._note_all()
            for model_id in self.admission.relieve(all_idle=pressure == "critical"):
                self._events.emit("relieve", model_id, pressure=pressure)
                self._tenants[model_id].evict(f"the machine is short of memory ({pressure})")

    # Inside

    def _keep_stranded(self) -> None:
        known = StrandedRecord(self._stranded.bytes, self._stranded.base_bytes)
        if known.base_bytes is None:
            return
        if known.bytes != self._kept.bytes or moved(self._kept.base_bytes, known.base_bytes):
            self._kept = known
            self._tasks.start(asyncio.to_thread(self._on_stranded, known), "keep stranded")

    async def _ask(self, tenant: Tenant) -> None:
        model_id = tenant.model.id
        try:
            needed_bytes = await self._needed_bytes(tenant.model)
        except (EstimateError, OSError) as error:
            logger.warning("%s: no estimate: %s", model_id, error, extra=about(model=model_id))
            needed_bytes = await asyncio.to_thread(_guess, tenant.model)
        if tenant.waits_for_memory:
            self.admission.ask(model_id, needed_bytes, tenant.priority, self._loop.time())
            self._decide_now()

    async def _needed_bytes(self, model: Model) -> int:
        most_bytes = self.admission.possible_bytes
        key, result = await asyncio.to_thread(_fitting, model, self._learned, most_bytes)
        self._keys[model.id] = key
        self.estimates[model.id] = result
        return with_margin(result)

    def _decide_now(self) -> None:
        if self._decision is not None:
            self._decision.cancel()
            self._decision = None
        self._note_all()
        claims = {each.model_id: each for each in self.admission.claims}
        for decision in self.admission.decide(self._loop.time()):
            self._perform(decision, claims)
        for claim in self.admission.claims:
            self._tenants[claim.model_id].note_wait(explain.waiting(self.admission, claim))

    def _note_all(self) -> None:
        for model_id, tenant in self._tenants.items():
            self.admission.note(
                model_id,
                priority=tenant.priority,
                busy=tenant.busy,
                last_used=tenant.last_used,
            )

    def _perform(self, decision: Decision, claims: dict[str, Claim]) -> None:
        tenant = self._tenants[decision.model_id]
        match decision:
            case Admit(granted_bytes=granted):
                self._events.emit(
                    "admit",
                    decision.model_id,
                    granted_bytes=granted,
                    free_bytes=self.admission.free_bytes,
                    waited_s=self._loop.time() - claims[decision.model_id].since,
                )
                tenant.admitted(granted)
            case Evict(for_model_id=other, busy=busy):
                needed = claims[other].needed_bytes
                self._events.emit(
                    "evict",
                    decision.model_id,
                    for_model=other,
                    needed_bytes=needed,
                    free_bytes=self.admission.free_bytes,
                    busy=busy,
                )
                tenant.evict(f"evicted: {other!r} needs {format_size(needed)}")
            case Refuse():
                tenant.has_no_room(explain.no_room(self.admission, decision))


def _fitting(model: Model, learned: Learned, most_bytes: int) -> tuple[str, Estimate]:
    folder = find_folder(model.source)
    settings = model.settings
    return fitting(folder, settings.context_tokens, settings.python, learned, most_bytes)


def _guess(model: Model) -> int:
    try:
        return guess(find_folder(model.source))
    except (EstimateError, OSError):
        # The worker will find out more, and say it better.
        return PROCESS_BYTES
