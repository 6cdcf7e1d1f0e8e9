"""What should have come back after a worker's end and did not. No I/O; the caller brings readings.

Only wired pages are asked. What is inactive, compressed or resident moves by tens of GB for
innocent reasons, and what other programs have wired does so too; so a single figure proves nothing,
however long it lasts. What is believed is a story: pages rose while the worker loaded, never fell
around its violent end, nothing else moved in those minutes that could have hidden it, and its model
is known to wire and to give back, or the same was seen twice.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from gateway.memory.stranded.account import PROMPT_S, RETURNS_S, Account, Claim
from gateway.memory.stranded.habits import Habits, Shown
from gateway.memory.stranded.question import Question
from gateway.memory.stranded.rises import take_rise

# Of the machine's memory: what moves by less has not moved, what is less is not looked for.
_STEP_SHARE: Final = 1 / 256
_LEAST_SHARE: Final = 1 / 32
# Long after what comes back has come back.
_DECIDES_S: Final = 180.0
# Until the workers that began to load meanwhile have shown what they wire.
_PATIENCE_S: Final = 600.0
# Readings that far apart have nobody seen what lies between them.
_ABSENCE_S: Final = 15.0
# Of what an ended worker had wired: what must be missing.
_MISSING: Final = 0.7
_MOST_SUSPECTS: Final = 16
# More than there can be in those seconds before an end in which it may not be known yet.
_RISES: Final = 16


class Held(NamedTuple):
    """A living worker: its footprint, and whether it loads, or loads or computes."""

    model_id: str
    footprint_bytes: int
    loads: bool
    works: bool


class Reading(NamedTuple):
    """The machine's wired bytes, and its workers by their pids. To be taken every second."""

    at: float
    wired_bytes: int
    workers: Mapping[int, Held]


class Finding(NamedTuple):
    """What is missing of what the ended worker of a model had wired."""

    model_id: str
    held_bytes: int
    missing_bytes: int


class Stranded:
    """`bytes` are stranded: found, and not turned up since."""

    def __init__(self, total_bytes: int, stranded_bytes: int = 0) -> None:
        """With the machine's memory, and what an earlier gateway has found since the same boot."""
        self.bytes = stranded_bytes
        self.proven: dict[str, list[int]] = {}
        self.floor_bytes: int | None = None
        self.level_bytes: int | None = None
        self._habits: defaultdict[str, Habits] = defaultdict(Habits)
        self._step_bytes = int(total_bytes * _STEP_SHARE)
        self._least_bytes = int(total_bytes * _LEAST_SHARE)
        self._accounts: dict[int, Account] = {}
        self._questions: list[Question] = []
        self._rises: deque[tuple[float, int]] = deque(maxlen=_RISES)
        self._read_at: float | None = None
        self._left: tuple[Claim, ...] = ()

    def resume(
        self,
        floor_bytes: int | None,
        level_bytes: int | None,
        proven: Iterable[str],
        habits: Iterable[Shown],
        claims: Iterable[Claim],
    ) -> None:
        """Take up what an earlier gateway of this boot has known, and judge the ends of its
        workers, which had wired so much beside a machine at this level.
        """
        self.floor_bytes, self.level_bytes = floor_bytes, level_bytes
        self.proven = {each: [0] for each in proven}
        self._habits.update({each.model_id: Habits(each) for each in habits})
        self._left = tuple(claims)

    @property
    def claims(self) -> list[Claim]:
        """What would have to come back if all workers died now."""
        living = [each.claim(self._read_at or 0.0) for each in self._accounts.values()]
        return [each for each in living if each.wired_bytes >= self._least_bytes]

    @property
    def habits(self) -> list[Shown]:
        """What the lives that have ended have shown."""
        return [each.shown(model_id) for model_id, each in self._habits.items()]

    @property
    def undecided_bytes(self) -> int:
        """What may not have come back yet: nobody should count on it. It is bounded in time."""
        left_bytes = sum(each.account.wired_bytes for each in self._questions if not each.suspect)
        return min(left_bytes, self._above_bytes)

    def ended(self, pid: int, now: float, *, clean: bool) -> None:
        """The process of a worker is gone. If it left by itself it has given everything back, and
        only the time that this takes is in question.
        """
        account = self._accounts.pop(pid, None)
        if account is None:
            return
        for question in self._questions:
            doubt_bytes = question.doubt(account, self._habits[account.model_id], now)
            if not clean:
                question.hidden_bytes += doubt_bytes
            elif doubt_bytes:
                # What it had wired unseen falls now.
                question.open_until = now + RETURNS_S
        account.end(now)
        self._habits[account.model_id].note(account)
        hidden_bytes = sum(size for at, size in self._rises if now - at <= PROMPT_S)
        self._questions.append(Question(account, now, hidden_bytes, clean=clean))

    def observe(self, reading: Reading) -> list[Finding]:
        """Take in a reading; returns what is found by it."""
        now = reading.at
        step_s = 0.0 if self._read_at is None else now - self._read_at
        if step_s > _ABSENCE_S:
            # The machine slept: what comes back has not had that time.
            for question in self._questions:
                question.ended_at += step_s
        self._read_at = now
        self._take_up(now)
        for pid in [each for each in self._accounts if each not in reading.workers]:
            self.ended(pid, now, clean=True)
        for pid, held in reading.workers.items():
            account = self._accounts.get(pid)
            if account is None:
                account = self._accounts[pid] = self._account(pid, held.model_id, now)
            account.observe(now, step_s, held.footprint_bytes, loads=held.loads, works=held.works)
        self._move(now, reading.wired_bytes)
        self._settle(now)
        self._learn(now)
        findings = self._decide(now)
        self.bytes = min(self.bytes, self._above_bytes)
        return findings

    def _account(self, pid: int, model_id: str, now: float) -> Account:
        habits = self._habits[model_id]
        return Account(pid, model_id, now, usual_share=habits.share, usually_keeps=habits.keeps)

    @property
    def _above_bytes(self) -> int:
        """What is wired beyond the least that ever was since the boot."""
        if self.level_bytes is None or self.floor_bytes is None:
            return 0
        return self.level_bytes - self.floor_bytes

    def _take_up(self, now: float) -> None:
        for number, claim in enumerate(self._left, start=1):
            account = Account.of_claim(claim, -number, now)
            self._habits[claim.model_id].note(account)
            self._questions.append(Question(account, now, 0, clean=False))
        self._left = ()

    def _move(self, now: float, wired_bytes: int) -> None:
        if self.level_bytes is None:
            self.level_bytes = wired_bytes
        risen_bytes = wired_bytes - self.level_bytes
        if abs(risen_bytes) >= self._step_bytes:
            self.level_bytes = wired_bytes
        if risen_bytes >= self._step_bytes:
            self._rise(now, risen_bytes)
        elif risen_bytes <= -self._step_bytes:
            self._settle(now)
            self._fall(now, -risen_bytes)
        self.floor_bytes = min(self.level_bytes, self.floor_bytes or self.level_bytes)

    def _settle(self, now: float) -> None:
        """Who has stopped since the last reading: a rise was still its own, and a fall is that of a
        worker at rest.
        """
        for account in self._accounts.values():
            account.settle(now)

    def _rise(self, now: float, size_bytes: int) -> None:
        living = self._accounts.values()
        foreign_bytes = take_rise(living, now, size_bytes, self._usual_bytes, self._step_bytes)
        if foreign_bytes > self._step_bytes:
            self._rises.append((now, foreign_bytes))
            for question in self._questions:
                question.hidden_bytes += foreign_bytes

    def _usual_bytes(self, account: Account) -> int:
        return int(account.held_bytes * self._habits[account.model_id].share)

    def _fall(self, now: float, size_bytes: int) -> None:
        """What is nobody's for certain counts as the return of everybody who may have had it."""
        # Of those that ended the last comes first: the others have had more time.
        ended = sorted(self._questions, key=lambda each: (not each.clean, -each.ended_at))
        accounts = [*self._accounts.values(), *(each.account for each in ended)]
        for account in accounts:
            taken_bytes = account.take_due(now, size_bytes)
            size_bytes -= taken_bytes
            swings = account.swings or self._habits[account.model_id].unwires
            if taken_bytes and account.pid in self._accounts and not swings:
                for question in self._questions:
                    question.owe(account.pid, taken_bytes)
        for account in accounts:
            account.fall(now, size_bytes)

    def _learn(self, now: float) -> None:
        for account in [*self._accounts.values(), *(each.account for each in self._questions)]:
            if account.most_bytes >= self._least_bytes and account.proves(now):
                lives = self.proven.setdefault(account.model_id, [])
                if account.pid not in lives:
                    self.proven[account.model_id] = [*lives[-1:], account.pid]

    def _decide(self, now: float) -> list[Finding]:
        for question in list(self._questions):
            if question.suspect or now - question.ended_at < RETURNS_S:
                continue
            for other in self._accounts.values():
                question.swap(other, self._habits[other.model_id], self._step_bytes)
            if (
                question.clean
                or not question.account.judged
                or question.account.wired_bytes < self._least_bytes
            ):
                self._questions.remove(question)
            elif (convinced := self._judge(question, now)) is not None:
                question.suspect = convinced
                if not convinced:
                    self._questions.remove(question)
        suspects = [each for each in self._questions if each.suspect]
        for question in suspects[:-_MOST_SUSPECTS]:
            self._questions.remove(question)
        confirmed = [each for each in suspects if self._confirmed(each, suspects)]
        findings = [self._find(each) for each in confirmed]
        return [each for each in findings if each.missing_bytes]

    def _judge(self, question: Question, now: float) -> bool | None:
        """Whether it hasn't come back; None: it can't be told yet."""
        account = question.account
        age_s = now - question.ended_at
        if age_s < _DECIDES_S:
            return None
        left_bytes = min(account.wired_bytes, self._above_bytes - self.bytes)
        if left_bytes < max(self._least_bytes, question.before_bytes * _MISSING):
            return False
        if question.hidden_bytes > question.allowed_bytes:
            return False
        doubt_bytes = question.hidden_bytes
        doubt_bytes += sum(question.owed_by(self._accounts.get(p), p) for p in question.owed_bytes)
        for other in self._accounts.values():
            doubt_bytes += question.doubt(other, self._habits[other.model_id], now)
        if doubt_bytes <= question.allowed_bytes and now >= question.open_until:
            return True
        return None if age_s < _PATIENCE_S else False

    def _confirmed(self, question: Question, suspects: list[Question]) -> bool:
        """By another life of the same model, that gave back or that did not either, and by what
        its lives have wired.
        """
        account = question.account
        lives = self.proven.get(account.model_id, [])
        twins = [each for each in suspects if each.account.model_id == account.model_id]
        told = len(twins) > 1 or any(each != account.pid for each in lives)
        return told and self._habits[account.model_id].agree(account)

    def _find(self, question: Question) -> Finding:
        self._questions.remove(question)
        account = question.account
        missing_bytes = min(account.wired_bytes, self._above_bytes - self.bytes)
        if missing_bytes < self._least_bytes:
            missing_bytes = 0
        self.bytes += missing_bytes
        return Finding(account.model_id, question.before_bytes, missing_bytes)
