"""Memory on behalf of the models: asks admission for them, and does what it decides."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from gateway.config.sizes import format_size
from gateway.events import EventLog
from gateway.logs.line import about
from gateway.memory import explain
from gateway.memory.admission import Admission
from gateway.memory.appraiser import Appraiser, Guessed, UnreadableError
from gateway.memory.estimate.estimate import Estimate
from gateway.memory.estimate.fitting import shortened
from gateway.memory.estimate.learned import Learned
from gateway.memory.execution import Execution
from gateway.memory.ledger import Need
from gateway.memory.reading import Pressure
from gateway.memory.stranded.policy import Reading, Stranded
from gateway.memory.stranded.record import StrandedRecord
from gateway.memory.stranded.renewal import Renewal
from gateway.memory.tenant import Tenant
from gateway.model.model import Model
from gateway.system.lane import Lane
from gateway.system.tasks import Tasks
from protocol.messages import Bound

logger = logging.getLogger(__name__)

# A worker that holds less than this part of its weights and process hasn't read them all.
_PLAUSIBLE: Final = 0.9
# What is learned again and again differs by less.
_SAME: Final = 0.05
# Until what was given back can show in the machine's figures.
_BETWEEN_RELIEFS_S: Final = 10.0
# For a small file of the state folder.
_WRITE_S: Final = 30.0


class Steward:
    """Everything runs on the event loop; files are read beside it."""

    def __init__(
        self,
        admission: Admission,
        learned: Learned,
        stranded: Stranded | None,
        on_stranded: Callable[[StrandedRecord], None],
        events: EventLog,
        spares: int,
        ordinary_tokens: int,
    ) -> None:
        """`on_stranded` keeps the figures for the next gateway; it is called off the loop. So many
        `spares` are wanted. `ordinary_tokens` of a sequence are to be had at a load.
        """
        self.admission = admission
        self._stranded = stranded
        self._on_stranded = on_stranded
        self._renewal = Renewal()
        if stranded is not None:
            self.admission.ledger.stranded_bytes = stranded.bytes
        # With the context that is possible, and with the whole one.
        self.estimates: dict[str, Estimate] = {}
        self._whole: dict[str, Estimate] = {}
        self._learned = learned
        self._wanted_spares = spares
        self._appraiser = Appraiser(learned, ordinary_tokens)
        self._state_files = Lane("state files")
        self._events = events
        self._execution = Execution(admission.ledger, events)
        self._tenants: dict[str, Tenant] = {}
        self._keys: dict[str, str] = {}
        # What each could get at best in the last round.
        self._attainable: dict[str, int] = {}
        self._tasks = Tasks("memory")
        self._loop = asyncio.get_running_loop()
        self._decision: asyncio.Handle | None = None
        self._relieved_at = float("-inf")

    def register(self, tenants: Iterable[Tenant]) -> None:
        self._tenants = {each.model.id: each for each in tenants}
        self._execution.register(self._tenants.values())

    def configure(
        self, budget_bytes: int, patience_s: float, spares: int, ordinary_tokens: int
    ) -> None:
        """Other limits. Models that they leave no room for have to go, busy ones too: an operator
        wants it so. Floors of models that are loaded stay what they are.
        """
        self._appraiser.ordinary_tokens = ordinary_tokens
        self._wanted_spares = spares
        spare_bytes = spares * self._learned.process_bytes
        self.admission.configure(budget_bytes, patience_s, spare_bytes)
        self.decide_soon()

    @property
    def spares(self) -> int:
        """For how many workers without a model there is room: for all that are wanted, or none."""
        return self._wanted_spares if self.admission.ledger.spare_bytes else 0

    async def close(self) -> None:
        if self._decision is not None:
            self._decision.cancel()
        await self._tasks.cancel_all()

    # From the tenants

    def ask(self, tenant: Tenant) -> None:
        """It wants to be loaded; the answer comes by `admitted`, `has_no_room` or
        `cannot_be_read`.
        """
        self._tasks.start(self._ask(tenant), f"memory for {tenant.model.id}")

    def withdraw(self, model_id: str) -> None:
        self.admission.withdraw(model_id)
        self.decide_soon()

    def ready(self, tenant: Tenant) -> None:
        self.admission.ready(
            tenant.model.id,
            self._loop.time(),
            reload_s=tenant.reload_s,
        )

    def pin(self, tenant: Tenant) -> None:
        """Its settings may have changed."""
        self.admission.pin(tenant.model.id, pinned=tenant.model.settings.pinned)
        self.decide_soon()

    def ending(self, model_id: str) -> None:
        self.admission.ending(model_id)
        self.decide_soon()

    def gone(self, model_id: str, pid: int | None, *, clean: bool) -> None:
        """Its process has ended, by itself if `clean`; None: there was none."""
        self.admission.gone(model_id)
        self._execution.gone(model_id)
        self._attainable.pop(model_id, None)
        if self._stranded is not None and pid is not None:
            self._stranded.ended(pid, self._loop.time(), clean=clean)
        self.decide_soon()

    def observe(self, reading: Reading) -> None:
        """Judge by the machine's wired pages what ended workers have given back."""
        stranded = self._stranded
        if stranded is None:
            return
        before_bytes = stranded.bytes
        for finding in stranded.observe(reading):
            self._events.emit(
                "return",
                finding.model_id,
                held_bytes=finding.held_bytes,
                missing_bytes=finding.missing_bytes,
                wired_bytes=reading.wired_bytes,
            )
            tenant = self._tenants.get(finding.model_id)
            if tenant is not None:
                tenant.lost_memory(finding.missing_bytes)
        if stranded.bytes != before_bytes:
            self._events.emit("stranded", None, stranded_bytes=stranded.bytes)
        # What may still be on its way back is lent to nobody.
        withheld_bytes = stranded.bytes + stranded.undecided_bytes
        self.admission.ledger.undecided_bytes = stranded.undecided_bytes
        if withheld_bytes != self.admission.ledger.stranded_bytes:
            self.admission.ledger.stranded_bytes = withheld_bytes
            self.decide_soon()
        record = self._renewal.due(stranded, time.time())
        if record is not None:
            self._write(functools.partial(self._on_stranded, record), "keep stranded")

    def note_footprint(self, model_id: str, footprint_bytes: int) -> None:
        self.admission.note_footprint(model_id, footprint_bytes)

    def note_need(self, model_id: str, need: Need, kept_bytes: int) -> None:
        """What its worker says that it could use, and keeps to; the answer may come at once."""
        self.admission.note_need(model_id, need, kept_bytes)
        self._decide_now()

    def note_beside(self, model_id: str, more_bytes: int) -> None:
        """Its worker holds so much more beside MLX's account, and will be told; a higher limit may
        come first.
        """
        self.admission.note_beside(model_id, more_bytes)
        self._decide_now()

    def learn(self, model_id: str, fixed_bytes: int) -> None:
        """Remember what it took with its weights and without a sequence, for the next load."""
        key, estimated = self._keys.get(model_id), self.estimates.get(model_id)
        if key is None or estimated is None:
            return
        if fixed_bytes < estimated.calculated_fixed_bytes * _PLAUSIBLE:
            # Not all of the weights are in memory yet: a floor for less would be broken at once.
            return
        if not _same(fixed_bytes, self._learned.fixed_bytes(key)):
            self._write(functools.partial(self._learned.put, key, fixed_bytes), "learn")

    def learn_process(self, process_bytes: int) -> None:
        """Remember what a worker takes without a model."""
        if not _same(process_bytes, self._learned.measured_process_bytes):
            self._write(functools.partial(self._learned.put_process, process_bytes), "learn")
            self.admission.reserve_spare(self._wanted_spares * process_bytes)
            self.decide_soon()

    def remark(self, model_id: str, requests: int) -> str | None:
        """What there is to say of the memory of a model that is loaded, in which so many requests
        wait for it: why, or what is being called back. None: nothing.
        """
        ledger = self.admission.ledger
        return explain.short(ledger, model_id, requests) or explain.returning(ledger, model_id)

    def bound(self, model_id: str) -> Bound | None:
        """The most that a model which has memory can get; None if it has none."""
        bytes_ = self.admission.attainable_bytes(model_id)
        if bytes_ is None:
            return None
        estimated = self.estimates.get(model_id)
        tokens = None if estimated is None else estimated.context_tokens
        reason = explain.at_best(self.admission.ledger, model_id, bytes_)
        return Bound(max(0, bytes_), tokens, reason)

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
            reason = f"the machine is short of memory ({pressure})"
            for decision in self.admission.relieve(now, all_idle=pressure == "critical"):
                self._events.emit("relieve", decision.model_id, pressure=pressure)
                self._execution.perform(decision, {}, reason)

    # Inside

    def _write(self, write: Callable[[], None], name: str) -> None:
        self._tasks.start(self._state_files.run(write, _WRITE_S, "the state folder"), name)

    async def _ask(self, tenant: Tenant) -> None:
        model_id = tenant.model.id
        try:
            needed_bytes = await self._needed_bytes(tenant.model)
        except UnreadableError as error:
            if tenant.waits_for_memory:
                tenant.cannot_be_read(str(error))
            return
        if tenant.waits_for_memory:
            self.admission.ask(
                model_id,
                needed_bytes,
                tenant.priority,
                self._loop.time(),
                pinned=tenant.model.settings.pinned,
            )
            self._decide_now()

    async def _needed_bytes(self, model: Model) -> int:
        found = await self._appraiser.appraise(model)
        if isinstance(found, Guessed):
            logger.warning("%s: no estimate: %s", model.id, found.why, extra=about(model=model.id))
            self.estimates.pop(model.id, None)
            return found.bytes
        self._keys[model.id] = found.key
        self._whole[model.id] = found.estimate
        possible_bytes = self.admission.ledger.possible_bytes
        self.estimates[model.id] = shortened(found.estimate, possible_bytes)
        return self.estimates[model.id].floor_bytes

    def _decide_now(self) -> None:
        if self._decision is not None:
            self._decision.cancel()
            self._decision = None
        self._note_all()
        claims = {each.model_id: each for each in self.admission.claims}
        budget = format_size(self.admission.ledger.budget_bytes)
        for decision in self.admission.decide(self._loop.time()):
            self._execution.perform(decision, claims, f"the budget of {budget} has no room for it")
        for claim in self.admission.claims:
            waits = explain.waiting(self.admission.ledger, claim)
            self._tenants[claim.model_id].note_wait(waits)
        self._tell_bounds()

    def _note_all(self) -> None:
        for model_id, tenant in self._tenants.items():
            self.admission.note(
                model_id,
                priority=tenant.priority,
                busy=tenant.busy,
                last_used=tenant.last_used,
            )

    def _tell_bounds(self) -> None:
        """Contexts follow what is possible: pins, other budgets and lost memory change it."""
        for model_id, tenant in self._tenants.items():
            bytes_ = self.admission.attainable_bytes(model_id)
            before_bytes = self._attainable.get(model_id)
            if bytes_ is None or bytes_ == before_bytes:
                continue
            self._attainable[model_id] = bytes_
            before = self.estimates.get(model_id)
            if before is not None:
                self.estimates[model_id] = after = shortened(self._whole[model_id], bytes_)
                if before_bytes is not None and after.context_tokens != before.context_tokens:
                    self._events.emit(
                        "context",
                        model_id,
                        context_tokens=after.context_tokens,
                        before_tokens=before.context_tokens,
                        attainable_bytes=bytes_,
                    )
            tenant.take_bound()


def _same(bytes_: int, known_bytes: int | None) -> bool:
    return known_bytes is not None and abs(bytes_ - known_bytes) <= known_bytes * _SAME
