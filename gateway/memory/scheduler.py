"""Asks `Admission` for memory on behalf of the models, and has its decisions carried out."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec import Struct

from gateway.config.model import Group, Model
from gateway.config.settings import Settings
from gateway.memory import explain
from gateway.memory.admission import Admission, Shortage
from gateway.memory.allocation import Allocation, MemoryNeed, WorkerReading
from gateway.memory.check_room import CheckRoom
from gateway.memory.commands import loading_key
from gateway.memory.estimate import Estimate
from gateway.memory.estimator import AbsentError, Estimator, Known, UnreadableFilesError
from gateway.memory.execution import (
    Execution,
    GroupLoading,
    NoRoomError,
    OtherHosts,
    ScheduledModel,
)
from gateway.memory.fitting import Learned
from gateway.memory.forecast import Forecast, forecast
from gateway.memory.leak_check import LeakCheck, LoadedWorker, StrandedRecord, WiredReading
from gateway.memory.weights import sharing
from gateway.system.clock import present_clock
from gateway.system.events import EventLog
from gateway.system.lane import Lane
from gateway.system.memory_reading import Pressure
from gateway.system.notation import format_size
from gateway.system.refusal import Refusal
from gateway.system.tasks import Tasks
from protocol.life import Bound

# A measurement that differs from the stored one by a smaller share isn't stored.
_SAME: Final = 0.05
# The longest time for writing a small file into the state folder.
_WRITE_S: Final = 30.0
# The time until a host that can't be reached is tried again.
_REACH_AGAIN_S: Final = 2.0


class AllocationState(Struct, frozen=True, kw_only=True):
    """The memory of one model, which a gateway hands over to the next gateway."""

    allocation: Allocation
    known: Known


class MemoryLimits(Struct, frozen=True):
    """All workers together may hold `budget_bytes`. A model that has waited for `patience_s` may
    displace busy models. `spares` is the wanted number of spares. At its load each model must have
    room for a sequence of `ordinary_tokens`.
    """

    budget_bytes: int
    patience_s: float
    spares: int
    ordinary_tokens: int

    @classmethod
    def of(cls, settings: Settings, budget_bytes: int) -> MemoryLimits:
        return cls(
            budget_bytes,
            settings.queue.max_wait_s,
            settings.workers.spare,
            settings.memory.ordinary_tokens,
        )


class MemoryScheduler:
    """Reports the models' events to `Admission` and has its decisions carried out, on the event
    loop. Files are read and written on other threads.
    """

    def __init__(
        self,
        limits: MemoryLimits,
        learned: Learned,
        leak_check: LeakCheck | None,
        on_stranded: Callable[[StrandedRecord], None],
        events: EventLog,
        hosts: OtherHosts,
    ) -> None:
        """`leak_check` None: nothing is ever stranded here. `on_stranded` keeps the figures of the
        leak check for the next gateway, and is called off the event loop.
        """
        spare_bytes = limits.spares * learned.process_bytes
        self.admission = Admission(limits.budget_bytes, limits.patience_s, spare_bytes)
        self.ledger = self.admission.ledger
        self._hosts = hosts
        # `Execution` and `GroupLoading` share this dict, so it is only changed in place.
        self._models: dict[str, ScheduledModel] = {}
        self._on_stranded = on_stranded
        self._learned = learned
        self._wanted_spares = limits.spares
        self._estimator = Estimator(self.admission, learned, limits.ordinary_tokens, events)
        self._state_files = Lane("state files")
        self._events = events
        self._execution = Execution(self.ledger, self._models, events)
        self._tasks = Tasks("memory")
        self._leak_check = leak_check
        if leak_check is not None:
            self.ledger.stranded_bytes = leak_check.bytes
        self._group_loading = GroupLoading(
            self.admission, self._models, self._estimator.floor_bytes, self._tasks
        )
        self._loop = asyncio.get_running_loop()
        # This clock stands still while the machine sleeps: workers and models don't wait then.
        self._clock = present_clock()
        self._decision: asyncio.Handle | None = None
        self._shortage = Shortage()
        self._frozen = False
        # Set after each round of decisions, for a check that waits for one.
        self._check_decided = asyncio.Event()
        # Models that wait because a host of their ranks can't be reached.
        self._out_of_reach: set[str] = set()

    def register(self, models: Iterable[ScheduledModel]) -> None:
        self._models.clear()
        self._models.update({model.model.id: model for model in models})

    def arrange(self, groups: Iterable[Group]) -> None:
        """Replace the groups."""
        self._group_loading.arrange(groups)
        self.decide_soon()

    def wanted_along(self, model_id: str) -> bool:
        """Whether a companion, a model that is loaded together with this one, waits or loads for
        its own sake.
        """
        return self._group_loading.is_wanted_along(model_id)

    def configure(self, limits: MemoryLimits) -> None:
        """Replace the limits, as an operator wants. Models that no longer fit are evicted, even
        busy models. The floors of loaded models stay as they are.
        """
        self._estimator.ordinary_tokens = limits.ordinary_tokens
        self._wanted_spares = limits.spares
        spare_bytes = limits.spares * self._learned.process_bytes
        self.admission.configure(limits.budget_bytes, limits.patience_s, spare_bytes)
        self.decide_soon()

    @property
    def room_bytes(self) -> tuple[int, int]:
        """The budget, and the free part of it."""
        ledger = self.ledger
        return ledger.budget_bytes, ledger.free_bytes

    @property
    def spares(self) -> int:
        """How many spares there is room for: all that are wanted, or none."""
        return self._wanted_spares if self.ledger.spare_bytes else 0

    def freeze(self) -> None:
        """Decide nothing until `thaw`."""
        self._frozen = True

    def thaw(self) -> None:
        self._frozen = False
        self.decide_soon()

    def state_of(self, model_id: str) -> AllocationState | None:
        """The memory of a model, for another gateway; None if the model has no memory."""
        allocation = self.ledger.allocation(model_id)
        if allocation is None:
            return None
        return AllocationState(allocation=allocation, known=self._estimator.known(model_id))

    def adopt(self, state: AllocationState) -> None:
        """Go on from the state of a model in an earlier gateway."""
        self.ledger.adopt(state.allocation)
        self._estimator.adopt(state.allocation.model_id, state.known)

    async def close(self) -> None:
        if self._decision is not None:
            self._decision.cancel()
        await self._tasks.cancel_all()

    # From the models

    def ask(self, scheduled: ScheduledModel) -> None:
        """Ask for a model's floor. The answer is a call of the model's `admitted`, `has_no_room` or
        `cannot_be_read`.
        """
        self._tasks.start(self._ask(scheduled), f"memory for {scheduled.model.id}")

    def withdraw(self, model_id: str) -> None:
        self.admission.withdraw(model_id)
        self.decide_soon()

    def ready(self, scheduled: ScheduledModel) -> None:
        self.admission.ready(scheduled.model.id, self._clock.now(), reload_s=scheduled.reload_s)

    def pin(self, scheduled: ScheduledModel) -> None:
        """Record whether a model is pinned, by its present settings."""
        self.admission.pin(scheduled.model.id, pinned=scheduled.model.settings.pinned)
        self.decide_soon()

    def ending(self, model_id: str) -> None:
        self.admission.ending(model_id)
        self.decide_soon()

    def gone(self, model_id: str, pid: int | None) -> None:
        """Free the memory of a process that has ended; `pid` None: the model had no process."""
        self.admission.gone(model_id)
        self._execution.gone(model_id)
        self._estimator.gone(model_id)
        if self._leak_check is not None and pid is not None:
            self._leak_check.ended(pid, self._clock.now())
        self.decide_soon()

    def check_leaks(self, wired_bytes: int, workers: dict[int, LoadedWorker]) -> None:
        """Look for memory that ended workers have stranded. `workers` are the living workers by
        their pids. To be called every second.
        """
        check, ledger = self._leak_check, self.ledger
        if check is None:
            return
        before_bytes = check.bytes
        for finding in check.observe(WiredReading(self._clock.now(), wired_bytes, workers)):
            self._events.emit(
                "return",
                finding.model_id,
                held_bytes=finding.held_bytes,
                missing_bytes=finding.missing_bytes,
                wired_bytes=wired_bytes,
            )
            if (scheduled := self._models.get(finding.model_id)) is not None:
                scheduled.lost_memory(finding.missing_bytes)
        if check.bytes != before_bytes:
            self._events.emit("stranded", None, stranded_bytes=check.bytes)
        if (record := check.due(time.time())) is not None:
            self._write(functools.partial(self._on_stranded, record), "keep stranded")
        withheld_bytes = check.bytes + check.undecided_bytes
        if withheld_bytes != ledger.stranded_bytes:
            ledger.stranded_bytes = withheld_bytes
            self.decide_soon()
        ledger.undecided_bytes = check.undecided_bytes

    def record(self, model_id: str, reading: WorkerReading) -> None:
        """Record a reading of the model's worker, and decide soon. The worker is sent what it holds
        beside MLX's account after these decisions, perhaps along with a higher limit.
        """
        self.admission.record(model_id, reading)
        self.decide_soon()

    def record_need(self, model_id: str, need: MemoryNeed, obeyed_bytes: int) -> None:
        """Record a worker's need, and the limit that the worker keeps to. Decide at once."""
        self.admission.record_need(model_id, need, obeyed_bytes)
        self._decide_now()

    def learn(self, model_id: str, fixed_bytes: int) -> None:
        """Remember the bytes of a worker with its weights and no sequence, for the next load."""
        key = self._estimator.key_of(model_id, fixed_bytes)
        if key is not None and not _same(fixed_bytes, self._learned.fixed_bytes(key)):
            self._write(functools.partial(self._learned.put, key, fixed_bytes), "learn")

    def learn_peak(self, model_id: str, peak_bytes: int, *, ready: bool) -> None:
        """Remember the most bytes that a command has held, for its next start. Before it is `ready`
        only more than it has asked for says anything.
        """
        estimated = self._estimator.commands.get(model_id)
        if estimated is None or not (ready or peak_bytes > estimated.bytes):
            return
        key = estimated.key if ready else loading_key(estimated.key)
        known_bytes = self._learned.fixed_bytes(key) or 0
        if peak_bytes > known_bytes * (1 + _SAME):
            self._write(functools.partial(self._learned.put, key, peak_bytes), "learn")

    def learn_process(self, process_bytes: int) -> None:
        """Remember the bytes of a worker without a model."""
        if not _same(process_bytes, self._learned.measured_process_bytes):
            self._write(functools.partial(self._learned.put_process, process_bytes), "learn")
            self.admission.reserve_spare(self._wanted_spares * process_bytes)
            self.decide_soon()

    async def forecast(self, scheduled: ScheduledModel, context_tokens: int) -> Forecast:
        """Forecast a load now, with an outline of the model for a context of `context_tokens`.

        Raises:
            UnreadableFilesError: the model's files can't be read now.
        """
        ledger, model_id = self.ledger, scheduled.model.id
        await self._group_loading.learn(model_id)
        floors = {model_id: await self._estimator.floor_bytes(scheduled.model)}
        for name in sorted(ledger.groups.companions(model_id)):
            # A model whose files can't be read stays out.
            if name in ledger.floors:
                floors[name] = ledger.floors[name]
        settings = msgspec.structs.replace(scheduled.model.settings, context_tokens=context_tokens)
        outline = await self._estimator.outline(
            msgspec.structs.replace(scheduled.model, settings=settings),
            {name: floor for name, floor in floors.items() if name != model_id},
        )
        self._record_use()
        figures = forecast(self.admission, model_id, floors, scheduled.priority, self._clock.now())
        return msgspec.structs.replace(figures, outline=outline)

    async def check_room(self, model: Model) -> CheckRoom:
        """The memory that a check of a model wants.

        Raises:
            UnreadableFilesError: the model's files can't be read now.
        """
        return await self._estimator.check_room(model)

    async def reserve_for_check(self, check: CheckRoom, within_s: float) -> None:
        """Wait until the check has memory, which `free_from_check` frees.

        Raises:
            Refusal: no memory was free within this time. Nothing is evicted for a check.
        """
        self._check_decided.clear()
        self.admission.want_check(check)
        self.decide_soon()
        try:
            async with asyncio.timeout(within_s):
                while not check.granted_bytes:
                    await self._check_decided.wait()
                    self._check_decided.clear()
        except TimeoutError:
            raise explain.no_room_for_check(self.ledger, check) from None
        finally:
            if not check.granted_bytes:
                self.free_from_check()

    async def until_needed(self, check: CheckRoom) -> None:
        """Wait until a model needs the memory of the check, whose process must end then."""
        while not check.ends:
            self._check_decided.clear()
            await self._check_decided.wait()

    def free_from_check(self) -> None:
        """Free the memory of a check, whose process has ended."""
        self.admission.want_check(None)
        self.decide_soon()

    def remark(self, model_id: str, requests: int) -> str | None:
        """A phrase on a loaded model in which so many `requests` wait for memory: why they wait, or
        that a loan of the model is being called back. None: neither is so.
        """
        ledger = self.ledger
        return explain.short(ledger, model_id, requests) or explain.returning(ledger, model_id)

    def estimate_of(self, model_id: str) -> Estimate | None:
        """The estimate with the context in force; None: no estimate was made."""
        return self._estimator.all.get(model_id)

    def bound(self, model_id: str) -> Bound | None:
        """The most that a loaded model can get; None if the model isn't loaded."""
        bytes_ = self.ledger.attainable_bytes(model_id)
        if bytes_ is None:
            return None
        estimated = self.estimate_of(model_id)
        tokens = None if estimated is None else estimated.context_tokens
        reason = explain.at_best(self.ledger, model_id, bytes_)
        return Bound(max(0, bytes_), tokens, reason)

    def decide_soon(self) -> None:
        """Decide after the present callback, which may be carrying out a decision."""
        if self._decision is None:
            self._decision = self._loop.call_soon(self._decide_now)

    def tick(self, pressure: Pressure | None) -> None:
        """Decide by the present time and by the machine's memory. To be called a few times a
        second: models that wait get more rights as time passes, and other programs may take memory.
        """
        if self._frozen:
            return
        self._decide_now()
        now = self._clock.now()
        if (short := self._shortage.to_relieve(pressure, now)) is not None:
            self._record_use()
            reason = f"the machine is short of memory ({short})"
            for decision in self.admission.relieve(now, all_idle=short == "critical"):
                self._events.emit("relieve", decision.model_id, pressure=short)
                self._execution.perform(decision, {}, reason)
                self._models[decision.model_id].send_limit()

    # Inside

    def _write(self, write: Callable[[], None], name: str) -> None:
        self._tasks.start(self._state_files.run(write, _WRITE_S, "the state folder"), name)

    async def _ask(self, scheduled: ScheduledModel) -> None:
        model_id = scheduled.model.id
        try:
            await self._group_loading.learn(model_id)
            needed_bytes = await self._estimator.needed_bytes(scheduled.model)
        except UnreadableFilesError as error:
            self.withdraw(model_id)
            if scheduled.waits_for_memory:
                scheduled.cannot_be_read(str(error), watched=isinstance(error, AbsentError))
            return
        if model_id in self._out_of_reach:
            return  # An earlier `_ask` for this model waits for the host.
        if not await self._has_room_elsewhere(scheduled, needed_bytes):
            self.withdraw(model_id)
            return
        if scheduled.waits_for_memory:
            self.admission.ask(
                model_id,
                needed_bytes,
                scheduled.priority,
                self._clock.now(),
                pinned=scheduled.model.settings.pinned,
            )
            self._decide_now()

    async def _has_room_elsewhere(self, scheduled: ScheduledModel, needed_bytes: int) -> bool:
        """Whether the other hosts admit the model's ranks there, by their own figures. They are
        asked before this machine, so that no model is evicted here in vain.
        """
        settings = scheduled.model.settings
        each_bytes = needed_bytes // sharing(settings.ranks_here)
        try:
            while scheduled.waits_for_memory:
                try:
                    await self._hosts.check_room(settings.places, each_bytes)
                    break
                except (ConnectionError, TimeoutError) as error:
                    self._note_out_of_reach(scheduled, error)
                    await asyncio.sleep(_REACH_AGAIN_S)
        except NoRoomError as error:
            if scheduled.waits_for_memory:
                scheduled.has_no_room(
                    Refusal(
                        "insufficient_memory", f"{scheduled.model.id!r} can't be loaded: {error}."
                    )
                )
        except OSError as error:
            if scheduled.waits_for_memory:
                scheduled.cannot_be_read(str(error), watched=False)
        else:
            return True
        finally:
            self._out_of_reach.discard(scheduled.model.id)
        return False

    def _note_out_of_reach(self, scheduled: ScheduledModel, error: OSError) -> None:
        """Note for which host the model waits. Its requests wait too, up to their own deadlines."""
        self._out_of_reach.add(scheduled.model.id)
        if scheduled.waits_for_memory:
            scheduled.explain_wait(f"it waits for a host: {error}; it is tried again")

    def _decide_now(self) -> None:
        if self._decision is not None:
            self._decision.cancel()
            self._decision = None
        if self._frozen:
            return
        self._group_loading.bring_along()
        self._record_use()
        claims = {claim.model_id: claim for claim in self.admission.claims}
        budget = format_size(self.ledger.budget_bytes)
        for decision in self.admission.decide(self._clock.now()):
            self._execution.perform(decision, claims, f"the budget of {budget} has no room for it")
        self._check_decided.set()
        for claim in self.admission.claims:
            waits = explain.waiting(self.ledger, claim)
            self._models[claim.model_id].explain_wait(waits)
        for model_id, scheduled in self._models.items():
            self._estimator.follow(model_id)
            scheduled.send_limit()

    def _record_use(self) -> None:
        for model_id, scheduled in self._models.items():
            self.admission.record_use(
                model_id,
                priority=scheduled.priority,
                busy=scheduled.busy,
                last_used=scheduled.last_used,
            )


def _same(bytes_: int, known_bytes: int | None) -> bool:
    return known_bytes is not None and abs(bytes_ - known_bytes) <= known_bytes * _SAME
