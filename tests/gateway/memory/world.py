"""A world of random models, requests, crashes and clocks, which performs what admission decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from gateway.memory.admission import Admission
from gateway.memory.admission_round import OVERGROWN_S, RECALL_S
from gateway.memory.allocation import MemoryNeed, WorkerReading
from gateway.memory.check_room import CheckRoom
from gateway.memory.ledger import (
    Admit,
    Decision,
    Evict,
    LimitChange,
    Refuse,
    RefuseSequence,
    Replace,
    Unanswered,
)
from gateway.memory.loans import REBALANCE_S

# Above what the account takes for noise.
UNIT = 64_000_000
BUDGET = 100 * UNIT
SPARE = 5 * UNIT
PATIENCE_S = 10.0
# How long a process takes to load or to end, in seconds.
SLOWEST_S = 4
MODELS = 6
# What every floor has for one sequence.
ORDINARY = 2 * UNIT
# What a worker holds at most that it doesn't account for.
MOST_BESIDE = 10 * UNIT
# What a fat worker takes beside its account, by a constant or by use, and is told a second later;
# and up to which floor there are such: where there is no room for it nobody could be served.
FAT = 5 * UNIT
LARGEST_FAT = 60 * UNIT
KINDS = ("thin", "thin", "constant", "by use", "keeps all")
# A long prompt: more than the patience of those who wait for its memory.
PROMPT_S = 30
# Patience, and then each of the others in turn: the end of one process, the start of another, and
# the time that this one may keep its place; and what a worker that hangs or grew too large takes.
BOUND_S = PATIENCE_S + MODELS * (
    2 * SLOWEST_S + 2 + PATIENCE_S / 4 + RECALL_S + OVERGROWN_S + REBALANCE_S + 2 * PROMPT_S
)


@dataclass
class Row:
    """A request: waiting since then, with so much left to do, and so large. First its prompt must
    be computed, and again if it has left its batch.
    """

    since: float
    left_s: float
    size: int
    prompt_s: int = 0
    computed_s: int = 0
    number: int = 0


@dataclass
class Model:
    """The outer side: a process that starts and ends, and requests that want it."""

    name: str
    floor: int
    priority: int = 0
    pinned: bool = False
    process: str | None = None
    until: float = 0.0
    waiting: list[Row] = field(default_factory=list)
    running: list[Row] = field(default_factory=list)
    last_used: float = 0.0
    busy_since: float = 0.0
    # Its worker: what it was told, when it will obey, what it keeps to, what it holds beside.
    ordered: int = 0
    obeys_at: float | None = None
    limit: int = 0
    beside: int = 0
    lag_s: int = 0
    begun: int = 0
    # What it takes beside, and was told of that; and the most that it held, if it gives nothing
    # back.
    kind: str = "thin"
    taken: int = 0
    known: int = 0
    highest: int = 0
    # What was measured after a load belongs to the floor of the next.
    learned: int = 0
    # What its prompt cache has, in what its rows leave.
    cache: int = 0

    @property
    def load_s(self) -> float:
        """How long its process takes to load, and to end."""
        return 1 + (self.floor // UNIT) % SLOWEST_S

    @property
    def least(self) -> int:
        """What it takes without rows, as far as it knows."""
        return self.floor - ORDINARY + self.known

    @property
    def used(self) -> int:
        return self.least + sum(row.size for row in self.running)

    @property
    def footprint(self) -> int:
        if self.process is None:
            return 0
        held = self.used - self.known + self.taken + self.cache + self.beside
        if self.kind == "keeps all":
            self.highest = held = max(self.highest, held)
        return held

    def need(self) -> MemoryNeed:
        wanted = self.used + sum(row.size for row in self.waiting)
        first = [*self.running, *self.waiting][:1]
        least = self.least + sum(row.size for row in first)
        prompt = next((e.number for e in self.running[:1] if e.computed_s < e.prompt_s), 0)
        return MemoryNeed(
            self.used, wanted, least, len(self.waiting), prompt, self.cache, 2 * self.cache + UNIT
        )

    def grow_cache(self) -> None:
        """What rows computed stays, as long as there is room."""
        free = max(0, self.limit - self.used)
        self.cache = min(free, self.cache + (UNIT if self.running else 0))

    def take_in(self) -> None:
        while self.waiting and self.used + self.waiting[0].size <= self.limit:
            self.begun += 1
            row = self.waiting.pop(0)
            row.number, row.computed_s = self.begun, 0
            self.running.append(row)
        self.keep_to_limit()

    def step(self) -> None:
        self.known = self.taken
        if self.kind == "by use" and self.running:
            self.taken = min(FAT, self.taken + UNIT)
        for row in self.running:
            if row.computed_s < row.prompt_s:
                row.computed_s += 1
            else:
                row.left_s -= 1.0
        self.running = [row for row in self.running if row.left_s > 0]
        self.grow_cache()

    def obey(self) -> None:
        self.limit, self.obeys_at = self.ordered, None
        while self.running and self.used > self.limit:
            self.waiting.insert(0, self.running.pop())
        self.keep_to_limit()

    def keep_to_limit(self) -> None:
        self.cache = min(self.cache, max(0, self.limit - self.used))


class World(RuleBasedStateMachine):
    """Checks what is decided against what processes really hold."""

    make: Callable[[], Admission] = staticmethod(lambda: Admission(BUDGET, PATIENCE_S, SPARE))
    steps = 0
    recalls = 0
    checks = 0

    @initialize(
        floors=st.lists(st.integers(3, 120), min_size=2, max_size=MODELS),
        pinned=st.sets(st.integers(0, MODELS - 1), max_size=1),
        priorities=st.lists(st.integers(0, 2), min_size=MODELS, max_size=MODELS),
        lags_s=st.lists(st.sampled_from((0, 1, 3)), min_size=MODELS, max_size=MODELS),
        kinds=st.lists(st.sampled_from(KINDS), min_size=MODELS, max_size=MODELS),
    )
    def create(
        self,
        floors: list[int],
        pinned: set[int],
        priorities: list[int],
        lags_s: list[int],
        kinds: list[str],
    ) -> None:
        self.now = 0.0
        # A check's process beside those of models, or one that waits for memory; and until when.
        self.room: CheckRoom | None = None
        self.room_until = 0.0
        self.story: deque[str] = deque(maxlen=60)
        self.admission = self.make()
        self.models = {
            str(index): Model(
                str(index),
                floor * UNIT,
                priorities[index],
                # Two pinned floors could leave others without any way to run.
                index in pinned and floor < 30,
                lag_s=lags_s[index],
                kind=kinds[index] if floor * UNIT <= LARGEST_FAT else "thin",
            )
            for index, floor in enumerate(floors)
        }

    def _model(self, number: int) -> Model:
        return list(self.models.values())[number % len(self.models)]

    @rule(
        number=st.integers(0, MODELS - 1),
        length_s=st.sampled_from((1, 3, 8, 150)),
        size=st.sampled_from((1, 1, 2, 5, 20)),
        count=st.integers(1, 8),
        prompt_s=st.sampled_from((0, 0, 0, PROMPT_S)),
    )
    def requests(self, number: int, length_s: int, size: int, count: int, prompt_s: int) -> None:
        model = self._model(number)
        # What could never fit is refused by the worker: its context is bounded by this.
        concerned = self.admission.ledger.groups.counted_with(model.name)
        staying = sum(
            e.floor
            for e in self.models.values()
            if e is not model and (e.pinned or e.name in concerned)
        )
        room = BUDGET - staying - model.floor - 2 * MOST_BESIDE
        size_bytes = min(size * UNIT, max(ORDINARY, room + ORDINARY))
        model.waiting += [Row(self.now, length_s, size_bytes, prompt_s) for _ in range(count)]
        self._serve_all()

    @rule(number=st.integers(0, MODELS - 1))
    def a_client_leaves(self, number: int) -> None:
        model = self._model(number)
        if model.waiting:
            model.waiting.pop()
        self._serve_all()

    @rule(number=st.integers(0, MODELS - 1))
    def a_crash(self, number: int) -> None:
        model = self._model(number)
        if model.process is not None:
            self._end(model)
        self._serve_all()

    @rule(number=st.integers(0, MODELS - 1))
    def an_operator_unloads(self, number: int) -> None:
        model = self._model(number)
        if model.process in ("loading", "ready"):
            self._ask_to_end(model)
            self.admission.ending(model.name)
        self._serve_all()

    @rule(number=st.integers(0, MODELS - 1), more=st.integers(1, 10))
    def it_grows(self, number: int, more: int) -> None:
        """Beside what it accounts for, which admission must count."""
        model = self._model(number)
        if model.process == "ready":
            model.beside = min(MOST_BESIDE, model.beside + more * UNIT)
        self._serve_all()

    @rule(number=st.integers(0, MODELS - 1))
    def it_hangs(self, number: int) -> None:
        """It obeys nothing any more."""
        self._model(number).lag_s = 10_000

    @rule(
        least=st.integers(1, 100),
        more=st.integers(0, 20),
        seconds=st.sampled_from((1, 10, 60)),
    )
    def a_check(self, least: int, more: int, seconds: int) -> None:
        if self.room is None:
            self.room = CheckRoom("check", least * UNIT, (least + more) * UNIT)
            self.room_until = self.now + seconds
            self.admission.want_check(self.room)
        self._serve_all()

    def _end_check(self) -> None:
        """At its time, or soon after the order, and had its memory until then."""
        if self.room is None:
            return
        if self.room.ends:
            self.room_until = min(self.room_until, self.now + SLOWEST_S)
        if self.now >= self.room_until:
            self.room = None
            self.admission.want_check(None)

    @rule(seconds=st.integers(1, 15))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self._second()

    def _second(self) -> None:
        self.now += 1.0
        self._end_check()
        for model in self.models.values():
            model.step()
            if model.running and model.used > model.limit and model.obeys_at is None:
                # Its rows can't have these bytes any more: some leave the batch.
                model.obeys_at = self.now + model.lag_s
            if model.obeys_at is not None and self.now >= model.obeys_at:
                model.obey()
            if model.process == "loading" and self.now >= model.until:
                model.process = "ready"
                model.learned = model.taken = FAT if model.kind == "constant" else 0
                self.admission.ready(model.name, self.now, reload_s=model.load_s)
            elif model.process == "ending" and self.now >= model.until:
                self._end(model)
        self._serve_all()

    def _serve_all(self) -> None:
        """As the gateway: demand becomes claims, then decisions, until nothing follows."""
        World.steps += 1
        for _ in range(40):
            for model in self.models.values():
                self._serve(model)
            decisions = self.admission.decide(self.now)
            for decision in decisions:
                self._perform(decision)
            self.check_that_groups_are_whole(decisions)
            self.check()
            if not decisions:
                self.check_that_idle_models_make_room()
                self.check_that_nobody_waits_for_what_is_free()
                return
        story = "\n".join([*self.story][-12:])
        raise AssertionError(f"decisions without end:\n{story}\n{self.models}")

    def _serve(self, model: Model) -> None:
        if not model.running and not model.waiting:
            model.busy_since = self.now
        if model.process == "ready":
            if model.waiting:
                model.last_used = self.now
            self._refuse_hopeless(model)
            model.take_in()
            if model.running:
                # It gets on: those behind may wait for those before them.
                for row in [*model.running, *model.waiting]:
                    row.since = self.now
            self.admission.record_need(model.name, model.need(), model.limit)
            self.admission.record(
                model.name, WorkerReading(model.footprint, model.footprint, model.limit)
            )
        elif model.process is None:
            if model.waiting or self._is_wanted_along(model):
                self.admission.ask(
                    model.name,
                    model.floor + model.learned,
                    model.priority,
                    self.now,
                    pinned=model.pinned,
                )
            else:
                self.admission.withdraw(model.name)
        self.admission.record_use(
            model.name,
            priority=model.priority,
            busy=bool(model.running or model.waiting),
            last_used=model.last_used,
        )

    def _refuse_hopeless(self, model: Model) -> None:
        """As a worker does that knows the most that it can get."""
        most = self.admission.ledger.attainable_bytes(model.name)
        assert most is not None
        fits = [row for row in model.waiting if model.least - model.known + row.size <= most]
        model.waiting = fits

    def _is_wanted_along(self, model: Model) -> bool:
        """One that it is loaded with is asked for."""
        companions = self.admission.ledger.groups.companions(model.name)
        return any(
            model.waiting and model.process is None and model.name in companions
            for model in self.models.values()
        )

    def _perform(self, decision: Decision) -> None:
        model = self.models[decision.model_id]
        self.story.append(f"{self.now} {decision}")
        match decision:
            case Admit(floor_bytes=floor):
                assert model.process is None, "a second process beside a living one"
                assert floor == model.floor + model.learned
                model.process = "loading"
                model.limit = model.ordered = floor
                model.until = self.now + model.load_s
            case LimitChange(limit_bytes=limit, recall=recall):
                assert model.process == "ready"
                assert limit >= model.floor, "a floor is nobody else's"
                World.recalls += recall
                model.ordered = limit
                if limit >= model.limit:
                    model.limit, model.obeys_at = limit, None
                elif model.obeys_at is None:
                    model.obeys_at = self.now + model.lag_s
                if model.lag_s == 0 and model.obeys_at is not None:
                    model.obey()
            case Evict(for_model_id=other, busy=busy):
                assert model.process == "ready"
                assert not model.pinned, "pinned models stay"
                groups = self.admission.ledger.groups
                held = self.room is not None and self.room.granted_bytes and not self.room.ends
                assert groups.all or not held, "a check has the memory"
                if groups.reserved(model.name) and other is not None:
                    asking = groups.companions(other) | {other}
                    assert model.name in groups.rivals(asking), "there is room for it"
                if other is not None and busy and self.models[other].process is None:
                    assert model.name not in groups.companions(other), "half a group"
                    for_whom = [self.models[name] for name in groups.companions(other) | {other}]
                    overdue = any(self.now - e.busy_since >= PATIENCE_S for e in for_whom)
                    assert overdue or any(e.priority > model.priority for e in for_whom)
                self._ask_to_end(model)
            case Replace(footprint_bytes=footprint, limit_bytes=limit):
                assert footprint > limit
                fat = model.taken or model.kind == "keeps all"
                assert model.beside or fat, "it reserved to its limit"
                self._ask_to_end(model)
            case Unanswered():
                assert model.lag_s >= RECALL_S, "it would have answered"
                self._end(model)
            case RefuseSequence(needed_bytes=needed):
                rows = [*model.waiting, *model.running]
                longest = max(rows, key=lambda row: row.size)
                assert model.least + longest.size >= needed, "it fits"
                (model.waiting if longest in model.waiting else model.running).remove(longest)
            case Refuse(together=others):
                assert model.waiting or others
                model.waiting = []

    def _ask_to_end(self, model: Model) -> None:
        self._park(model)
        model.process = "ending"
        model.until = self.now + model.load_s

    def _park(self, model: Model) -> None:
        """Who runs in it waits from now on, and has done a part."""
        model.waiting = [*model.running, *model.waiting]
        model.running = []

    def _end(self, model: Model) -> None:
        self._park(model)
        model.process = None
        model.beside, model.cache, model.obeys_at = 0, 0, None
        model.taken, model.known, model.highest = 0, 0, 0
        model.lag_s = min(model.lag_s, 3)
        self.admission.gone(model.name)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "models"):
            self.check()

    def check(self) -> None:
        ledger = self.admission.ledger
        alive = [model for model in self.models.values() if model.process is not None]
        beside = sum(model.beside + model.taken for model in alive)
        # What a process may take by right; what it takes beside that is nobody's decision.
        rights = sum(max(model.limit, model.ordered) for model in alive)
        grown = sum(
            max(0, allocation.limit_bytes - self.models[allocation.model_id].limit)
            for allocation in ledger.allocations
        )
        checked = 0 if self.room is None else self.room.granted_bytes
        World.checks += checked > 0
        assert rights + ledger.spare_bytes + checked <= BUDGET + beside + grown, "over the budget"
        assert {allocation.model_id for allocation in ledger.allocations} == {
            model.name for model in alive
        }
        for claim in self.admission.claims:
            assert self.models[claim.model_id].process is None
        for model in self.models.values():
            for row in model.waiting[:1]:
                stuck = not model.running
                if stuck and self.now - row.since > BOUND_S:
                    story = "\n".join(self.story)
                    raise AssertionError(f"{model.name} starves\n{story}\n{self.models}")

    def check_that_groups_are_whole(self, decisions: list[Decision]) -> None:
        """What is loaded together is admitted together."""
        for decision in decisions:
            if isinstance(decision, Admit):
                for other in self.admission.ledger.groups.companions(decision.model_id):
                    assert self.models[other].process in ("loading", "ready"), "half a group"

    def check_that_idle_models_make_room(self) -> None:
        """Nobody waits beside an idle model that would do for all that wait."""
        ledger = self.admission.ledger
        if ledger.groups.all:
            return  # Some idle ones stay with those that they were loaded with.
        if ledger.free_bytes < 0 or any(
            allocation.starved_since is not None for allocation in ledger.steady
        ):
            return
        needed = sum(claim.needed_bytes for claim in self.admission.claims)
        missing = needed - ledger.free_bytes - ledger.coming_bytes
        for allocation in ledger.allocations:
            if missing > 0 and allocation.evictable_for_any and not allocation.busy:
                assert allocation.freed_by_end_bytes < missing, (
                    f"{allocation.model_id} is in the way"
                )

    def check_that_nobody_waits_for_what_is_free(self) -> None:
        """Nor for what it was told to give back itself, if nobody else waits for that."""
        ledger = self.admission.ledger
        if ledger.groups.all:
            return  # Some wait for those that they are loaded with.
        missing = [claim.needed_bytes for claim in self.admission.claims]
        for allocation in ledger.steady:
            least = min(allocation.need.least_bytes, ledger.possible_for(allocation.model_id))
            if least > allocation.limit_bytes:
                missing.append(max(0, least - allocation.limit_bytes - allocation.returning_bytes))
        free = ledger.free_bytes
        if missing:
            assert sum(missing) > free, f"{missing} are waited for, and {free} are free"
            return
        short = [allocation for allocation in ledger.steady if allocation.short]
        # Who was too large a moment ago has to wait.
        if short and all(self.now - allocation.outgrew_at >= REBALANCE_S for allocation in short):
            assert free <= 0, f"{short} wait, and {free} are free"
            alone = len(short) == 1 and free == 0
            assert not alone or not short[0].returning_bytes, f"{short} give back, and {free}"

    def teardown(self) -> None:
        """Left alone, everybody is served or refused in time, and nothing is held in the end."""
        if not hasattr(self, "models"):
            return
        for model in self.models.values():
            # What grows in each process anew may be cut off in each of its prompts, where it is
            # the last to fit.
            model.kind = "thin" if model.kind == "by use" else model.kind
        for _ in range(100_000):
            self._second()
            if not any(model.waiting or model.running for model in self.models.values()):
                break
        else:
            raise AssertionError("deadlock")
        self._second()
        assert not list(self.admission.claims)
        for model in self.models.values():
            if model.process is not None:
                self._end(model)
        self.room_until = self.now
        self._end_check()
        self.admission.decide(self.now)
        assert self.admission.ledger.free_bytes == BUDGET - SPARE, "something leaks"
