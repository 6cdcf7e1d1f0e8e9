"""A Mac that doesn't exist: what it wires, what other programs wire, and what workers do to it.

Sizes in bytes, times in seconds. Nothing here knows how it is judged.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

GB = 1_000_000_000
# After so long without a move, readings are as far apart as that: they'd only repeat themselves.
QUIET_S = 6.0
LONGEST_STEP_S = 12
SIZES_GB = (32, 48, 64, 96, 128, 192, 256, 512)


@dataclass
class Ramp:
    """A size on its way to another."""

    now: float = 0.0
    target: float = 0.0
    speed: float = 0.0

    def go(self, target: float, seconds: float) -> None:
        self.target = target
        self.speed = abs(target - self.now) / max(seconds, 1.0)

    def step(self) -> None:
        now, target = self.now, self.target
        if now < target:
            self.now = min(target, now + self.speed)
        elif now > target:
            self.now = max(target, now - self.speed)


@dataclass
class Program:
    """Another program that wires: rarely much, or often a little."""

    chance: random.Random
    most: float
    every_s: float
    wired: Ramp = field(default_factory=Ramp)
    next_at: float = 0.0

    def step(self, now: float) -> None:
        if now >= self.next_at:
            self.next_at = now + self.chance.expovariate(1 / self.every_s)
            target = 0.0 if self.chance.random() < 0.4 else self.chance.uniform(0, self.most)
            self.wired.go(target, self.chance.choice((1, 2, 5, 20, 60)))
        if self.wired.now != self.wired.target:
            self.wired.step()


@dataclass
class ModelKind:
    """`share` of what it holds is wired while it computes; it keeps that at rest, or doesn't."""

    name: str
    size: float
    share: float
    keeps: bool
    wires_at_load: bool
    rest_s: float
    work_s: float
    life_s: float


class Worker:
    def __init__(self, kind: ModelKind, pid: int, now: float, chance: random.Random) -> None:
        self.kind, self.pid, self.chance = kind, pid, chance
        self.born_at = now
        self.held = Ramp(0.1 * GB)
        self.held.go(kind.size, kind.size / (chance.uniform(1, 6) * GB))
        self.wired = Ramp()
        self.imports_until = now + chance.uniform(0, 3)
        self.loads = self.works = True
        self.next_at = 0.0
        self.unwires_at: float | None = None
        self.rests = 0
        self.computed_at: float | None = None
        self.worked_at = self.moved_at = now
        self.ends_at = now + chance.expovariate(1 / kind.life_s) + 30

    def step(self, now: float) -> None:
        if now < self.imports_until:
            return
        self.held.step()
        if self.loads:
            if self.kind.wires_at_load:
                self.wired.now = self.wired.target = self.held.now * self.kind.share
            if self.held.now >= self.kind.size:
                self.loads = False
                self._work(now) if self.chance.random() < 0.7 else self._rest(now)
        elif now >= self.next_at:
            self._rest(now) if self.works else self._work(now)
        if self.unwires_at is not None and now >= self.unwires_at:
            self.unwires_at = None
            self.wired.go(0.0, self.chance.choice((1, 2)))
        if self.wired.now != self.wired.target:
            self.moved_at = now
        self.wired.step()

    def _work(self, now: float) -> None:
        self.works, self.unwires_at = True, None
        if self.computed_at is None:
            self.computed_at = now
        self.worked_at = now
        self.wired.go(self.kind.size * self.kind.share, self.chance.choice((1, 2)))
        self.next_at = now + 3 + self.chance.expovariate(1 / self.kind.work_s)

    def _rest(self, now: float) -> None:
        self.works = False
        self.rests += 1
        if not self.kind.keeps:
            self.unwires_at = now + self.chance.choice((1, 1, 2))
        self.next_at = now + 3 + self.chance.expovariate(1 / self.kind.rest_s)


@dataclass(frozen=True)
class End:
    """Of a worker: what it had wired, and how much of that stays wired from now on.

    It first computed at `computed_at`, and has rested so often. `at_rest`: nobody has seen it
    compute since the last time; `unseen`: it wired or unwired in its last second.
    """

    at: float
    born_at: float
    pid: int
    model: str
    wired: float
    lost: float
    computed_at: float | None
    rests: int
    at_rest: bool
    unseen: bool


class Mac:
    """One second at a time, and several where nothing happens."""

    def __init__(self, seed: int, *, strands: bool = True) -> None:
        chance = self.chance = random.Random(seed)
        self._noise = random.Random(seed)
        self.total = chance.choice(SIZES_GB) * GB
        self.now = 0.0
        self.kernel = chance.uniform(2, 6) * GB
        self.stranded = 0.0
        self.strands = strands
        most = min(80 * GB, 0.4 * self.total)
        self.programs = [Program(chance, most, chance.choice((1800.0, 3600.0, 7200.0)))]
        if chance.random() < 0.3:
            self.programs.append(Program(chance, most / 15, chance.choice((30.0, 300.0))))
        self.kinds = [self._kind(each) for each in range(chance.choice((1, 1, 2, 3)))]
        self.workers: dict[str, Worker] = {}
        self.starts = {each.name: chance.uniform(0, 600) for each in self.kinds}
        self.returning: list[tuple[str, Ramp]] = []
        self.ended: list[tuple[int, bool]] = []
        # By how much wired pages had moved at a time in all, but for those of a model's workers.
        self.moves = {each.name: [(0.0, 0.0)] for each in self.kinds}
        self.ends: list[End] = []
        # Inactive, compressed and resident pages of everybody else.
        self.inactive = Program(chance, 0.3 * self.total, 300.0)
        self.resident = Program(chance, 0.3 * self.total, 300.0)
        self._pids = iter(range(100, 10**9))
        self._stirred_at = 0.0

    def _kind(self, number: int) -> ModelKind:
        chance = self.chance
        share = chance.choice((0.0, 0.1, 0.3, 0.8, 0.9, 0.9, 0.95, 1.0, 1.0))
        return ModelKind(
            f"model-{number}",
            self.total * chance.uniform(0.06, 0.2),
            share,
            keeps=chance.random() < 0.5,
            wires_at_load=chance.random() < 0.7,
            rest_s=chance.choice((10.0, 60.0, 600.0)),
            work_s=chance.choice((5.0, 60.0, 600.0)),
            life_s=chance.choice((600.0, 1800.0, 7200.0)),
        )

    @property
    def wired(self) -> int:
        noise = self._noise.gauss(0, self.total / 4000)
        return int(
            self.kernel
            + noise
            + self.stranded
            + sum(each.wired.now for each in self.programs)
            + sum(each.wired.now for each in self.workers.values())
            + sum(each.now for _, each in self.returning)
        )

    @property
    def losses(self) -> list[End]:
        return [each for each in self.ends if each.lost]

    def step(self, until: float) -> None:
        step_s = self._step_s(until)
        self.now += step_s
        self.ended = []
        drift = self.chance.gauss(0, 4e6 * step_s**0.5)
        self.kernel = min(8 * GB, max(2 * GB, self.kernel + drift))
        before = self._moving()
        for program in (*self.programs, self.inactive, self.resident):
            program.step(self.now)
        for _, ramp in self.returning:
            ramp.step()
        for kind in self.kinds:
            worker = self.workers.get(kind.name)
            if worker is not None:
                worker.step(self.now)
            elif self.now >= self.starts[kind.name]:
                self.workers[kind.name] = Worker(kind, next(self._pids), self.now, self.chance)
        after = self._moving()
        if after != before:
            self._note(before, after)
        if self.returning:
            self.returning = [each for each in self.returning if each[1].now > 0]
        for name, worker in list(self.workers.items()):
            if self.now >= worker.ends_at and not worker.loads:
                self.end(name)

    def _moving(self) -> list[tuple[str, float, bool]]:
        """What is wired, by the model that has it; "" is none."""
        moving = [("", each.wired.now, True) for each in self.programs]
        moving += [(name, each.now, True) for name, each in self.returning]
        moving += [(name, each.wired.now, each.works) for name, each in self.workers.items()]
        return moving

    def _note(
        self, before: list[tuple[str, float, bool]], after: list[tuple[str, float, bool]]
    ) -> None:
        self._stirred_at = self.now
        # A worker that has just begun has wired nothing.
        pairs = list(zip(before, after, strict=False))
        for model, moves in self.moves.items():
            moved = sum(abs(new[1] - old[1]) for old, new in pairs if old[0] != model)
            if moved:
                moves.append((self.now, moves[-1][1] + moved))

    def _step_s(self, until: float) -> float:
        """As long as nothing has moved for a while, to the second before something will."""
        if self.now - self._stirred_at < QUIET_S or self.returning:
            return 1.0
        times = [until + 1, *(each.next_at for each in self.programs)]
        for kind in self.kinds:
            worker = self.workers.get(kind.name)
            if worker is None:
                times.append(self.starts[kind.name])
            elif worker.loads:
                return 1.0
            else:
                times += worker.next_at, worker.ends_at
        return float(max(1, min(LONGEST_STEP_S, int(min(times) - self.now) - 1)))

    def end(self, name: str, *, killed: bool | None = None) -> None:
        """A clean end, or a violent one; most of those come while a worker computes."""
        worker = self.workers[name]
        self._stirred_at = self.now
        if killed is None:
            killed = self.chance.random() < (0.3 if worker.works else 0.1)
        del self.workers[name]
        self.ended.append((worker.pid, not killed))
        wired = worker.wired.now
        lost = 0.0
        room = self.stranded < 0.4 * self.total
        if killed and self.strands and room and self.chance.random() < 0.25:
            lost = wired * self.chance.uniform(0.85, 1.0)
            self.stranded += lost
        self.ends.append(
            End(
                at=self.now,
                born_at=worker.born_at,
                pid=worker.pid,
                model=name,
                wired=wired,
                lost=lost,
                computed_at=worker.computed_at,
                rests=worker.rests,
                at_rest=not worker.works or self.now == worker.worked_at,
                unseen=self.now == worker.moved_at,
            )
        )
        back = Ramp(wired - lost)
        back.go(0.0, self.chance.choice((1, 1, 1, 2, 5, 20, 60)))
        self.returning.append((name, back))
        soon = killed and self.chance.random() < 0.7
        self.starts[name] = self.now + (1 if soon else self.chance.uniform(5, 1200))

    def turn_up(self) -> None:
        """What was stranded is given back after all."""
        self.stranded = 0.0

    def seconds(self, count: int) -> Iterator[None]:
        until = self.now + count
        while self.now < until:
            self.step(until)
            yield
