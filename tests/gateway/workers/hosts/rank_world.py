"""A world of ranks here and elsewhere, links that lose what they like, and deaths, which performs
what is decided about the ranks of one model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from gateway.system.child import ExitStatus
from gateway.workers import shutdown_steps
from gateway.workers.host import RankEnd
from gateway.workers.lifeline import PING_S, SILENCE_S, Lifeline, gone_at
from gateway.workers.rank_group import LEADER_FOLLOWS_S, RankGroup
from gateway.workers.shutdown_steps import ShutdownStep, TimedStep
from protocol.process import grace_s

TICK_S = 0.25
# How late the end of a process here is reported, and how long a process takes that obeys SIGTERM.
LATEST_S = 0.5
SLOWEST_S = 1.5
# For the answer to the order to start one.
ANSWER_S = 2.0
GB = 1_000_000_000
CLEAN = ExitStatus(0, None)
KILLED = ExitStatus(None, "SIGKILL")

# The bytes of a rank about which nothing is known.
_UNKNOWN: Final = 1 << 50


def unheard_s(held: int) -> float:
    """The longest life of a rank whose session has ended."""
    return gone_at(0.0, 0.0, held or _UNKNOWN)


def ordered_s(held: int) -> float:
    """From the first death or order on until each rank has an order to end, or acts on its own: a
    follower that leaves without a fault; a host out of reach.
    """
    return LEADER_FOLLOWS_S + LATEST_S + SILENCE_S + ANSWER_S + unheard_s(held)


def over_s(held: int) -> float:
    """And until the next incarnation may begin: the longest ladder, and ranks out of reach."""
    steps = shutdown_steps.polite(held)
    return ordered_s(held) + sum(timed.deadline_s for timed in steps) + SILENCE_S + unheard_s(held)


@dataclass
class Process:
    """One that obeys SIGTERM after `lag_s`; a `stubborn` one never."""

    rank: int
    incarnation: int
    held: int
    lag_s: float
    stubborn: bool
    ordered: bool = False
    ends_at: float | None = None
    killed_at: float | None = None
    status: ExitStatus | None = None

    @property
    def alive(self) -> bool:
        return self.status is None

    def signal(self, step: ShutdownStep, now: float) -> None:
        match step:
            case ShutdownStep.TERMINATE:
                self.ordered = True
                if not self.stubborn and self.ends_at is None:
                    self.ends_at = now + self.lag_s
            case ShutdownStep.KILL:
                self.ordered = True
                self.killed_at = now
            case _:
                pass

    def orphan(self, now: float) -> None:
        """Whoever has started it is gone."""
        self.signal(ShutdownStep.TERMINATE, now)
        at = now + grace_s(self.held)
        self.killed_at = at if self.killed_at is None else min(at, self.killed_at)

    def tick(self, now: float) -> None:
        if self.ends_at is not None and now >= self.ends_at:
            self.status = CLEAN
        if self.killed_at is not None and now >= self.killed_at:
            self.status = KILLED


END = "end of the pipe"
START = "start"
STARTED = "started"
Message = str | int | ShutdownStep | ExitStatus


class Session:
    """A session of one rank, with both ends and the link between them, as
    `gateway.workers.ssh_host` and `gateway.workers.remote` perform it.

    The link loses nothing, but may be late.
    """

    def __init__(self, now: float, host: int, process: Process) -> None:
        self.host = host
        self.process = process
        self.to_remote: deque[Message] = deque([START])
        self.to_gateway: deque[Message] = deque()
        # The remote program
        self.lifeline = Lifeline(now)
        self.remote_runs = True
        self.has_rank = False
        self.ending = False
        self.kill_at: float | None = None
        self.ping_at = now
        # The gateway
        self.answered = False
        self.pong_at = self.heard_at = now
        self.lost_at: float | None = None
        self.end: RankEnd | None = None

    @property
    def runs(self) -> bool:
        """Whether the rank's process runs."""
        return self.has_rank and self.process.alive

    def remote_tick(self, now: float) -> None:
        was_alive = self.process.alive
        if self.has_rank:
            self.process.tick(now)
        if not self.remote_runs:
            return
        if self.has_rank and was_alive and self.process.status is not None:
            self.to_gateway.append(self.process.status)
        if now >= self.ping_at:
            self.ping_at = now + PING_S
            self.to_gateway.append(self.lifeline.ping(now))
        if self.lifeline.is_cut(now):
            self.end_rank(now)
        if self.kill_at is not None and now >= self.kill_at and self.has_rank:
            self.process.signal(ShutdownStep.KILL, now)
        if self.ending and not self.runs:
            self.kill_remote(now)

    def remote_receives(self, message: Message, now: float) -> None:
        if not self.remote_runs:
            return
        match message:
            case ShutdownStep():
                if self.has_rank:
                    self.process.signal(message, now)
            case int():
                self.lifeline.pong(message)
            case _ if message == START and not self.ending:
                self.has_rank = True
                self.to_gateway.append(STARTED)
            case _:
                self.end_rank(now)

    def end_rank(self, now: float) -> None:
        if not self.ending:
            self.ending = True
            if self.has_rank:
                self.process.signal(ShutdownStep.TERMINATE, now)
                self.kill_at = now + shutdown_steps.orphaned(self.process.held)[0].deadline_s

    def kill_remote(self, now: float) -> None:
        if self.remote_runs:
            self.remote_runs = False
            self.to_gateway.append(END)
            if self.runs:
                self.process.orphan(now)

    def gateway_receives(self, message: Message, now: float) -> None:
        if self.lost_at is not None:
            return
        self.heard_at = now
        match message:
            case ExitStatus():
                self.end = self.end or RankEnd(message, str(message))
            case int():
                self.pong_at = now
                self.to_remote.append(message)
            case _ if message == STARTED:
                self.answered = True
            case _:
                self.lose(now)

    def lose(self, now: float) -> None:
        """The gateway ends the session, or finds that it has ended."""
        if self.lost_at is None:
            self.lost_at = now
            self.to_remote.append(END)


@dataclass
class Incarnation:
    """`followers` are those that are there, or may be, by their ranks."""

    number: int
    fate: RankGroup
    leader: Process
    to_start: deque[int]
    followers: dict[int, Process] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    starting: int | None = None
    fails_at: float = 0.0
    none_more: bool = False
    # What is told to the gateway later.
    news: list[tuple[float, int]] = field(default_factory=list)
    must_end_at: list[float] = field(default_factory=list)
    ladders: list[tuple[Iterator[TimedStep], float]] = field(default_factory=list)
    leader_reported: bool = False
    troubled_at: float | None = None


class World(RuleBasedStateMachine):
    """Checks what is decided against what is alive."""

    fate: Callable[[], RankGroup] = staticmethod(RankGroup)
    gone_at: Callable[[float, float, int], float] = staticmethod(gone_at)
    incarnations = 0
    lost_elsewhere = 0

    @initialize(
        places=st.lists(st.sampled_from((None, 0, 0, 1)), min_size=1, max_size=4),
        gigabytes=st.sampled_from((0, 1, 4, 20)),
    )
    def set_up(self, places: list[int | None], gigabytes: int) -> None:
        self.now = 100.0
        self.places = places
        self.held = gigabytes * GB
        # All sessions of which a rank or a remote program may be left.
        self.sessions: list[Session] = []
        # Whether messages come to a host, and from there.
        self.hears = [True, True]
        self.answers = [True, True]
        # How many messages a link carries in a tick.
        self.carries = 100
        self.lags = [(0.0, False)]
        self.everyone: list[Process] = []
        self.story: deque[str] = deque(maxlen=40)
        self.number = 0
        self._spawn()

    # What happens

    @rule(ticks=st.integers(1, 40))
    def time_passes(self, ticks: int) -> None:
        for _ in range(ticks):
            self._tick()

    @rule(rank=st.integers(0, 4))
    def a_rank_is_killed(self, rank: int) -> None:
        process = self._process(rank)
        if process is not None and process.alive:
            self._record(f"rank {rank} is killed")
            process.killed_at = self.now
            self._trouble()

    @rule(rank=st.integers(0, 4))
    def a_rank_ends_by_itself(self, rank: int) -> None:
        process = self._process(rank)
        if process is not None and process.alive and not process.stubborn:
            self._record(f"rank {rank} ends by itself")
            process.ends_at = self.now
            self._trouble()

    @rule(
        lags=st.lists(
            st.tuples(st.sampled_from((0.0, 0.5, SLOWEST_S)), st.booleans()), min_size=1, max_size=4
        )
    )
    def the_next_ones_are_like_this(self, lags: list[tuple[float, bool]]) -> None:
        """How slowly they obey, and which of them don't."""
        self.lags = lags

    @rule(
        steps=st.sampled_from(
            (shutdown_steps.polite, shutdown_steps.shortened, shutdown_steps.hung)
        )
    )
    def somebody_ends_it(self, steps: Callable[[int], tuple[TimedStep, ...]]) -> None:
        """An operator, an eviction, or a verdict that it hangs."""
        self._record(f"{steps.__name__} ladder")
        self._climb(steps(self.held))

    @rule(host=st.integers(0, 1), hears=st.booleans(), answers=st.booleans())
    def a_link_changes(self, host: int, hears: bool, answers: bool) -> None:
        self._record(f"host {host} hears: {hears}, answers: {answers}")
        self.hears[host], self.answers[host] = hears, answers

    @rule(carries=st.sampled_from((1, 3, 100)))
    def links_are_slow(self, carries: int) -> None:
        self.carries = carries

    @rule(rank=st.integers(1, 4))
    def a_remote_program_is_killed(self, rank: int) -> None:
        if (session := self.incarnation.sessions.get(rank)) is not None:
            self._record(f"the remote program of rank {rank} is killed")
            self._trouble()
            session.kill_remote(self.now)

    @rule(rank=st.integers(1, 4))
    def an_ssh_is_killed(self, rank: int) -> None:
        if (session := self.incarnation.sessions.get(rank)) is not None:
            self._record(f"ssh to rank {rank} is killed")
            self._trouble()
            session.lose(self.now)

    @rule(ticks=st.integers(4, 16))
    def an_answer_to_a_start_is_late(self, ticks: int) -> None:
        if (host := self._starting_at()) is not None:
            self.a_link_changes(host, hears=True, answers=False)
            self.time_passes(ticks)
            self.a_link_changes(host, hears=True, answers=True)

    @rule()
    def it_is_killed_while_one_is_started(self) -> None:
        if self._starting_at() is not None:
            self._climb(shutdown_steps.immediate())

    def _starting_at(self) -> int | None:
        """The host that starts a rank of the next incarnation."""
        self.a_rank_is_killed(0)
        for _ in range(100):
            if (rank := self.incarnation.starting) is not None:
                return self._host_of(rank)
            self._tick()
        return None

    @rule(host=st.integers(0, 1), ticks=st.integers(30, 70), stubborn=st.booleans())
    def a_host_is_cut_off_and_its_programs_killed(
        self, host: int, ticks: int, stubborn: bool
    ) -> None:
        """While ranks run there, and whatever the remote programs were about to do."""
        self.lags = [(SLOWEST_S, stubborn)]
        self.a_rank_is_killed(0)
        self._until_it_serves()
        self.a_link_changes(host, hears=False, answers=False)
        self.time_passes(ticks)
        for rank in range(1, 5):
            if self._host_of_follower(rank) == host:
                self.a_remote_program_is_killed(rank)

    @rule(rank=st.integers(1, 4), ticks=st.integers(200, 500))
    def a_follower_leaves(self, rank: int, ticks: int) -> None:
        """While all of them run, and nobody else says anything."""
        self._until_it_serves()
        self.a_rank_ends_by_itself(rank)
        self.time_passes(ticks)

    def _until_it_serves(self) -> None:
        """If it does so before long."""
        for _ in range(200):
            if self._serves():
                return
            self._tick()

    # As the gateway

    def _spawn(self) -> None:
        World.incarnations += 1
        self.number += 1
        self.incarnation = Incarnation(
            self.number, self.fate(), self._new(0), deque(range(1, len(self.places) + 1))
        )
        self.everyone.append(self.incarnation.leader)
        self._record(f"incarnation {self.number}")

    def _new(self, rank: int) -> Process:
        lag_s, stubborn = self.lags[rank % len(self.lags)]
        return Process(rank, self.number, self.held, lag_s, stubborn)

    def _tick(self) -> None:
        self.now += TICK_S
        for process in self.everyone:
            if self._host_of(process.rank) is None:
                self._tick_here(process)
        for session in list(self.sessions):
            self._tick_there(session)
        self._start()
        self._climb_on()
        current = self.incarnation
        for reported_at, rank in [news for news in current.news if self.now >= news[0]]:
            current.news.remove((reported_at, rank))
            self._report_end(rank)
        for end_at in [time for time in current.must_end_at if self.now >= time]:
            current.must_end_at.remove(end_at)
            if current.fate.must_end():
                current.fate.end()
                self._climb(shutdown_steps.after_rank_failure(self.held))
        if current.leader_reported and current.fate.over:
            self._over()
        self.everyone = [process for process in self.everyone if process.alive]
        self.check()

    def _tick_here(self, process: Process) -> None:
        was_alive = process.alive
        process.tick(self.now)
        current = self.incarnation
        if was_alive and not process.alive and process.incarnation == current.number:
            self._trouble()
            late_s = LATEST_S if process.rank % 2 else 0.0
            # It may be told twice.
            current.news += [(self.now + late_s, process.rank), (self.now + LATEST_S, process.rank)]

    def _report_end(self, rank: int) -> None:
        current = self.incarnation
        process = current.followers[rank] if rank else current.leader
        status = process.status
        assert status is not None
        end = RankEnd(status, str(status))
        if rank == 0:
            current.leader_reported = True
            self._end_after(current.fate.leader_ended(end))
        else:
            self._follower_ended(rank, end)

    def _follower_ended(self, rank: int, end: RankEnd) -> None:
        current = self.incarnation
        assert not self._is_alive(rank), self._tell(f"rank {rank} is called ended, and is alive")
        self._end_after(current.fate.follower_ended(rank, "it", end))

    def _end_after(self, seconds: float | None) -> None:
        if seconds is not None:
            self.incarnation.must_end_at.append(self.now + seconds)

    def _over(self) -> None:
        left = [process for process in self.everyone if process.alive]
        left += [session.process for session in self.sessions if session.runs]
        assert not left, self._tell(f"the next one beside {left}")
        self._spawn()

    # Ends

    def _climb(self, steps: tuple[TimedStep, ...]) -> None:
        self._trouble()
        self.incarnation.fate.end()
        self.incarnation.ladders.append((iter(steps), self.now))

    def _climb_on(self) -> None:
        current = self.incarnation
        ladders, current.ladders = current.ladders, []
        for steps, next_at in ladders:
            if self.now < next_at:
                current.ladders.append((steps, next_at))
            elif (timed := next(steps, None)) is not None:
                self._apply(timed.step)
                current.ladders.append((steps, self.now + timed.deadline_s))

    def _apply(self, step: ShutdownStep) -> None:
        current = self.incarnation
        current.fate.record_step(step)
        leader = current.leader
        leader.signal(ShutdownStep.TERMINATE if step is ShutdownStep.ASK else step, self.now)
        if step is not ShutdownStep.ASK:
            for rank in current.followers:
                self._signal(rank, step)

    def _signal(self, rank: int, step: ShutdownStep) -> None:
        current = self.incarnation
        process, host = current.followers[rank], self._host_of(rank)
        if host is None:
            process.signal(step, self.now)
            return
        session = current.sessions[rank]
        if session.lost_at is None:
            session.to_remote.append(step)
            if not self._reached(host) and step is not ShutdownStep.DUMP:
                session.lose(self.now)

    # Starts

    def _start(self) -> None:
        current = self.incarnation
        if current.starting is not None:
            self._await_start(current.starting)
        elif not current.none_more and (not current.to_start or not current.fate.may_start):
            self._none_more()
        elif not current.none_more:
            rank = current.to_start.popleft()
            process, host = self._new(rank), self._host_of(rank)
            if host is None:
                self.everyone.append(process)
                self._started(rank, process)
            elif not self._reached(host):
                self._none_more()
                self._climb(shutdown_steps.shortened(self.held))
            else:
                current.sessions[rank] = session = Session(self.now, host, process)
                self.sessions.append(session)
                current.starting, current.fails_at = rank, self.now + ANSWER_S

    def _await_start(self, rank: int) -> None:
        current = self.incarnation
        session = current.sessions[rank]
        if session.answered or session.lost_at is not None or self.now >= current.fails_at:
            current.starting = None
            if not session.answered:
                session.lose(self.now)
            self._started(rank, session.process)

    def _started(self, rank: int, process: Process) -> None:
        current = self.incarnation
        current.followers[rank] = process
        step = current.fate.started(rank)
        if step is not None:
            self._signal(rank, step)
        # The news of its end may have come together with the answer to its start.
        session = current.sessions.get(rank)
        if session is not None and session.end is not None:
            self._follower_ended(rank, session.end)

    def _none_more(self) -> None:
        self.incarnation.none_more = True
        self.incarnation.fate.none_more()

    # Links

    def _reached(self, host: int) -> bool:
        return self.hears[host] and self.answers[host]

    def _tick_there(self, session: Session) -> None:
        ran = session.runs
        session.remote_tick(self.now)
        if ran and not session.runs and session.process.incarnation == self.number:
            self._trouble()
        for _ in range(self.carries):
            if self.hears[session.host] and session.to_remote:
                session.remote_receives(session.to_remote.popleft(), self.now)
            if self.answers[session.host] and session.to_gateway:
                session.gateway_receives(session.to_gateway.popleft(), self.now)
        if session.lost_at is None and self.now - session.heard_at >= SILENCE_S:
            self._trouble()
            session.lose(self.now)
        self._judge(session)
        if session.end is not None and session.lost_at is None:
            session.lose(self.now)
        if session.end is not None and not session.runs and not session.remote_runs:
            self.sessions.remove(session)

    def _judge(self, session: Session) -> None:
        """Find out whether the rank of a lost session has ended, and report the end of a rank."""
        if session.end is None and session.lost_at is not None:
            World.lost_elsewhere += 1
            gone_by = self.gone_at(session.lost_at, session.pong_at, self.held)
            has_ended = session.answered and self._reached(session.host) and not session.runs
            if self.now >= gone_by or has_ended:
                session.end = RankEnd(None, "it is out of reach")
        current = self.incarnation
        rank = session.process.rank
        if (
            session.end is not None
            and current.sessions.get(rank) is session
            and rank in current.followers
        ):
            self._follower_ended(rank, session.end)

    # What must be true

    def _trouble(self) -> None:
        """A rank has died, or is to: from now on it is a matter of time."""
        if self.incarnation.troubled_at is None:
            self.incarnation.troubled_at = self.now

    @invariant()
    def holds_true(self) -> None:
        if hasattr(self, "places"):
            self.check()

    def check(self) -> None:
        current = self.incarnation
        if current.troubled_at is None:
            return
        for_s = self.now - current.troubled_at
        if for_s > ordered_s(self.held):
            for follower in (current.leader, *current.followers.values()):
                assert follower.ordered or not self._is_alive(follower.rank), self._tell(
                    f"nobody has told rank {follower.rank} to end"
                )
        assert for_s <= over_s(self.held), self._tell("what is left of it is awaited for ever")

    def teardown(self) -> None:
        """Left alone, the next incarnation runs, whatever was."""
        if not hasattr(self, "places"):
            return
        self.hears, self.answers = [True, True], [True, True]
        self.carries = 100
        self.lags = [(0.0, False)]
        for _ in range(round(2 * over_s(self.held) / TICK_S)):
            self._tick()
            if self._serves():
                return
        raise AssertionError(self._tell("it never runs again"))

    def _serves(self) -> bool:
        current = self.incarnation
        ranks = [current.leader, *current.followers.values()]
        return len(ranks) == 1 + len(self.places) and all(
            self._is_alive(rank.rank) and not rank.ordered for rank in ranks
        )

    # Looks

    def _host_of(self, rank: int) -> int | None:
        return None if rank == 0 else self.places[rank - 1]

    def _host_of_follower(self, rank: int) -> int | None:
        return self.places[rank - 1] if rank <= len(self.places) else None

    def _process(self, rank: int) -> Process | None:
        current = self.incarnation
        return current.leader if rank == 0 else current.followers.get(rank)

    def _is_alive(self, rank: int) -> bool:
        """One elsewhere may never have been started."""
        host, process = self._host_of(rank), self._process(rank)
        if host is None:
            return process is not None and process.alive
        session = self.incarnation.sessions.get(rank)
        return session is not None and session.runs

    def _record(self, text: str) -> None:
        self.story.append(f"{self.now}: {text}")

    def _tell(self, what: str) -> str:
        return "\n".join([f"{self.now}: {what}", *self.story, str(self.incarnation)])
