"""A world of ranks here and elsewhere, links that lose what they like, and deaths, which performs
what is decided about the ranks of one model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from gateway.server.agent_session import NewsQueue
from gateway.workers.agent_bodies import RankEnded, RankNews
from gateway.workers.lease import Contact, Lease, Tenants
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
from gateway.workers.rank_group import LEADER_FOLLOWS_S, RankGroup
from gateway.workers.shutdown_steps import ShutdownStep, TimedStep
from protocol.process import grace_s

TICK_S = 0.25
LEASE_S = 8.0
# How late the end of a process here is told, how long one takes that ends as it is asked to, and
# how long an agent is away that was killed.
LATEST_S = 0.5
SLOWEST_S = 1.5
AWAY_S = 3.0
# For the answer to the order to start one.
ANSWER_S = 2.0
GB = 1_000_000_000
CLEAN = ExitStatus(0, None)
KILLED = ExitStatus(None, "SIGKILL")

# What one that nobody hears of is waited for: its agent, and then itself.
_UNKNOWN: Final = 1 << 50


def unheard_s(held: int) -> float:
    return shutdown_steps.orphaned(held or _UNKNOWN)[0].deadline_s + grace_s(held or _UNKNOWN) + 2.0


def ordered_s(held: int) -> float:
    """From the first death or order on until each rank has an order to end, or acts on its own: a
    follower that leaves without a fault; a host out of reach.
    """
    return LEADER_FOLLOWS_S + LATEST_S + LEASE_S + ANSWER_S + AWAY_S + unheard_s(held)


def over_s(held: int) -> float:
    """And until the next incarnation may begin: the longest ladder, and what nobody hears of."""
    rungs = shutdown_steps.polite(held)
    return ordered_s(held) + sum(each.deadline_s for each in rungs) + LEASE_S + unheard_s(held)


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


class Agent:
    """What runs on another host, as `gateway.server.agent` does it."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.number = 0
        # None: there is no lease, or none any more.
        self.over: bool | None = None
        self.news = NewsQueue(lambda: None)
        self.ranks: dict[str, Process] = {}
        self.unwanted: set[str] = set()
        self.climbing: dict[str, float] = {}
        self.away_until: float | None = None

    def open(self, now: float) -> int:
        self.lease, self.over = Lease(now, LEASE_S), False
        self.news, self.unwanted = NewsQueue(lambda: None), set()
        self.number += 1
        return self.number

    def start(self, lease: int, rank_id: str, process: Process) -> bool:
        if lease != self.number or self.over is not False or rank_id in self.unwanted:
            return False
        self.ranks[rank_id] = process
        return True

    def knows(self, lease: int) -> bool:
        return lease == self.number and self.over is not None

    def turn(self, confirmed: int, unwanted: tuple[str, ...], now: float) -> RankNews | None:
        """None: the lease is over."""
        if self.over or self.lease is None:
            return None
        self.lease.turn(confirmed)
        self.news.confirm(confirmed)
        for each in unwanted:
            self.unwanted.add(each)
            self.climb(each, now)
        return self.news.tell(self.lease.answer(now))

    def end(self, now: float) -> None:
        self.over = True
        for each in self.ranks:
            self.climb(each, now)

    def climb(self, rank_id: str, now: float) -> None:
        if rank_id in self.ranks and rank_id not in self.climbing:
            process = self.ranks[rank_id]
            process.signal(ShutdownStep.TERMINATE, now)
            self.climbing[rank_id] = now + shutdown_steps.orphaned(process.held)[0].deadline_s

    def tick(self, now: float) -> None:
        for rank_id, process in list(self.ranks.items()):
            process.tick(now)
            if process.status is not None:
                del self.ranks[rank_id]
                self.climbing.pop(rank_id, None)
                self.news.add_end(RankEnded(rank_id, process.status, str(process.status)))
        if self.away_until is not None:
            # The next one serves once it has ended what this one has left.
            if now >= self.away_until and not self.ranks:
                self.away_until = None
            return
        if self.over is False and self.lease is not None and self.lease.judge(now) is not None:
            self.end(now)
        if self.over and not self.ranks:
            self.over = None
        for rank_id, kill_at in self.climbing.items():
            if now >= kill_at:
                self.ranks[rank_id].signal(ShutdownStep.KILL, now)

    def kill(self, now: float) -> None:
        """And start it again."""
        self.lease, self.over, self.climbing = None, None, {}
        self.away_until = now + AWAY_S
        for each in self.ranks.values():
            each.orphan(now)


@dataclass
class Starting:
    """The order to start a rank, which may come there late, as may its answer."""

    rank: int
    rank_id: str
    process: Process
    arrives_at: float
    answered_at: float
    fails_at: float
    arrived: bool | None = None


class Leasehold:
    """The gateway's side of a lease, as `gateway.workers.leased` performs it."""

    def __init__(self, now: float, number: int, tenants: Tenants) -> None:
        self.number = number
        self.contact = Contact(now, LEASE_S)
        self.tenants = tenants
        self.ids: set[str] = set()
        self.over = False


@dataclass
class Incarnation:
    """`followers` are those that are there, or may be: by their ranks, with their identities."""

    number: int
    fate: RankGroup
    leader: Process
    to_start: deque[int]
    followers: dict[int, Process] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    starting: Starting | None = None
    none_more: bool = False
    # What is told to the gateway later.
    news: list[tuple[float, int]] = field(default_factory=list)
    must_end_at: list[float] = field(default_factory=list)
    ladders: list[tuple[Iterator[TimedStep], float]] = field(default_factory=list)
    leader_told: bool = False
    troubled_at: float | None = None


class World(RuleBasedStateMachine):
    """Checks what is decided against what is alive."""

    fate: Callable[[], RankGroup] = staticmethod(RankGroup)
    tenants: Callable[[], Tenants] = staticmethod(Tenants)
    incarnations = 0
    lost_elsewhere = 0

    @initialize(
        places=st.lists(st.sampled_from((None, 0, 0, 1)), min_size=1, max_size=4),
        gigabytes=st.sampled_from((0, 1, 4, 20)),
    )
    def begin(self, places: list[int | None], gigabytes: int) -> None:
        self.now = 100.0
        self.places = places
        self.held = gigabytes * GB
        self.agents = [Agent(), Agent()]
        self.holds: list[Leasehold | None] = [None, None]
        # Leases that are over, of which ranks may be left.
        self.past: list[tuple[int, Leasehold]] = []
        # Whether orders come to a host, and answers from there.
        self.hears = [True, True]
        self.answers = [True, True]
        # What is known of an end before the answer to the order to start it.
        self.ends: dict[str, RankEnd] = {}
        # Orders to start one that are still on the way, when nobody waits for them any more.
        self.late: list[tuple[int, int, Starting]] = []
        self.lags = [(0.0, False)]
        self.everyone: list[Process] = []
        self.story: deque[str] = deque(maxlen=40)
        self.number = 0
        self.next_id = 0
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
            self._note(f"rank {rank} is killed")
            process.killed_at = self.now
            self._trouble()

    @rule(rank=st.integers(0, 4))
    def a_rank_ends_by_itself(self, rank: int) -> None:
        process = self._process(rank)
        if process is not None and process.alive and not process.stubborn:
            self._note(f"rank {rank} ends by itself")
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
        rungs=st.sampled_from(
            (shutdown_steps.polite, shutdown_steps.shortened, shutdown_steps.hung)
        )
    )
    def somebody_ends_it(self, rungs: Callable[[int], tuple[TimedStep, ...]]) -> None:
        """An operator, an eviction, or a verdict that it hangs."""
        self._note(f"{rungs.__name__} ladder")
        self._climb(rungs(self.held))

    @rule(host=st.integers(0, 1), hears=st.booleans(), answers=st.booleans())
    def a_link_changes(self, host: int, hears: bool, answers: bool) -> None:
        self._note(f"host {host} hears: {hears}, answers: {answers}")
        self.hears[host], self.answers[host] = hears, answers

    @rule(host=st.integers(0, 1))
    def an_agent_is_killed(self, host: int) -> None:
        agent = self.agents[host]
        if agent.away_until is None:
            self._note(f"agent {host} is killed")
            if any(self.places[rank - 1] == host for rank in self.incarnation.followers):
                self._trouble()
            agent.kill(self.now)

    @rule(host=st.integers(0, 1))
    def a_connection_is_closed(self, host: int) -> None:
        agent = self.agents[host]
        if agent.lease is not None:
            agent.lease.closed(self.now)

    @rule(ticks=st.integers(4, 16))
    def an_order_to_start_one_is_lost(self, ticks: int) -> None:
        if (host := self._starting_at()) is not None:
            self.a_link_changes(host, hears=False, answers=True)
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
            if (starting := self.incarnation.starting) is not None:
                return self._host_of(starting.rank)
            self._tick()
        return None

    @rule(host=st.integers(0, 1), ticks=st.integers(30, 70), stubborn=st.booleans())
    def a_host_is_cut_off_and_its_agent_killed(self, host: int, ticks: int, stubborn: bool) -> None:
        """While ranks run there, and whatever the agent was about to do."""
        self.lags = [(SLOWEST_S, stubborn)]
        self.a_rank_is_killed(0)
        self._until_it_serves()
        self.a_link_changes(host, hears=False, answers=False)
        self.time_passes(ticks)
        self.an_agent_is_killed(host)

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
        self._note(f"incarnation {self.number}")

    def _new(self, rank: int) -> Process:
        lag_s, stubborn = self.lags[rank % len(self.lags)]
        return Process(rank, self.number, self.held, lag_s, stubborn)

    def _tick(self) -> None:
        self.now += TICK_S
        for process in self.everyone:
            if self._host_of(process.rank) is None:
                self._tick_here(process)
        for host, agent in enumerate(self.agents):
            before = [each for each in agent.ranks.values() if each.alive]
            agent.tick(self.now)
            if any(not each.alive and each.incarnation == self.number for each in before):
                self._trouble()
            self._ask(host)
        self._start()
        self._climb_on()
        current = self.incarnation
        for at, rank in [each for each in current.news if self.now >= each[0]]:
            current.news.remove((at, rank))
            self._told(rank)
        for at in [each for each in current.must_end_at if self.now >= each]:
            current.must_end_at.remove(at)
            if current.fate.must_end():
                current.fate.end()
                self._climb(shutdown_steps.after_rank_failure(self.held))
        if current.leader_told and current.fate.over:
            self._over()
        self.everyone = [each for each in self.everyone if each.alive]
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

    def _told(self, rank: int) -> None:
        current = self.incarnation
        process = current.followers[rank] if rank else current.leader
        status = process.status
        assert status is not None
        end = RankEnd(status, str(status))
        if rank == 0:
            current.leader_told = True
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
        left = [each for each in self.everyone if each.alive]
        left += [each for agent in self.agents for each in agent.ranks.values()]
        assert not left, self._tell(f"the next one beside {left}")
        self._spawn()

    # Ends

    def _climb(self, rungs: tuple[TimedStep, ...]) -> None:
        self._trouble()
        self.incarnation.fate.end()
        self.incarnation.ladders.append((iter(rungs), self.now))

    def _climb_on(self) -> None:
        current = self.incarnation
        ladders, current.ladders = current.ladders, []
        for rungs, at in ladders:
            if self.now < at:
                current.ladders.append((rungs, at))
            elif (rung := next(rungs, None)) is not None:
                self._take(rung.step)
                current.ladders.append((rungs, self.now + rung.deadline_s))

    def _take(self, step: ShutdownStep) -> None:
        current = self.incarnation
        current.fate.take(step)
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
        rank_id, agent = current.ids[rank], self.agents[host]
        reaches = self.hears[host] and agent.away_until is None
        if reaches and rank_id in agent.ranks:
            agent.ranks[rank_id].signal(step, self.now)
        hold = self.holds[host]
        if (
            not (reaches and self.answers[host])
            and step is not ShutdownStep.DUMP
            and hold is not None
        ):
            hold.tenants.disown(rank_id)

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
            elif (hold := self._held(host)) is None:
                self._none_more()
                self._climb(shutdown_steps.shortened(self.held))
            else:
                self.next_id += 1
                rank_id = current.ids[rank] = str(self.next_id)
                hold.ids.add(rank_id)
                hold.tenants.expect(rank_id, self.held)
                slow_s = (self.next_id % 4) * TICK_S
                current.starting = Starting(
                    rank,
                    rank_id,
                    process,
                    self.now + slow_s,
                    self.now + 2 * slow_s,
                    self.now + ANSWER_S,
                )

    def _held(self, host: int) -> Leasehold | None:
        hold = self.holds[host]
        if hold is not None and not hold.over:
            return hold
        agent = self.agents[host]
        # An agent has a session for each lease: here the next one is opened when nothing is left.
        if not self._reached(host) or agent.ranks:
            return None
        if hold is not None:
            self.past.append((host, hold))
        self.holds[host] = hold = Leasehold(self.now, agent.open(self.now), self.tenants())
        return hold

    def _await_start(self, starting: Starting) -> None:
        host = self._host_of(starting.rank)
        assert host is not None
        hold, agent = self.holds[host], self.agents[host]
        assert hold is not None
        reaches = self.hears[host] and agent.away_until is None
        if starting.arrived is None and self.now >= starting.arrives_at and reaches:
            starting.arrived = agent.start(hold.number, starting.rank_id, starting.process)
        if (
            starting.arrived is not None
            and self.now >= starting.answered_at
            and self._reached(host)
        ):
            self.incarnation.starting = None
            if starting.arrived:
                self._started(starting.rank, starting.process)
            else:
                hold.ids.discard(starting.rank_id)
                hold.tenants.ended(starting.rank_id)
                self._none_more()
                self._climb(shutdown_steps.shortened(self.held))
        elif self.now >= starting.fails_at:
            self.incarnation.starting = None
            if starting.arrived is None and self.next_id % 2:
                self.late.append((host, hold.number, starting))
            hold.tenants.unanswered(starting.rank_id, "there was no answer")
            self._started(starting.rank, starting.process)

    def _started(self, rank: int, process: Process) -> None:
        current = self.incarnation
        current.followers[rank] = process
        step = current.fate.started(rank)
        if step is not None:
            self._signal(rank, step)
        if (end := self.ends.get(current.ids.get(rank, ""))) is not None:
            self._follower_ended(rank, end)

    def _none_more(self) -> None:
        self.incarnation.none_more = True
        self.incarnation.fate.none_more()

    # Links

    def _reached(self, host: int) -> bool:
        return self.hears[host] and self.answers[host] and self.agents[host].away_until is None

    def _ask(self, host: int) -> None:
        if self.hears[host] and self.agents[host].away_until is None:
            for each in [each for each in self.late if each[0] == host]:
                self.late.remove(each)
                self.agents[host].start(each[1], each[2].rank_id, each[2].process)
        for at, past in self.past:
            if at == host:
                self._see_out(host, past)
        hold = self.holds[host]
        if hold is None:
            return
        if hold.over:
            self._see_out(host, hold)
            return
        if self._hears(host, hold):
            unwanted = hold.tenants.unwanted
            news = self.agents[host].turn(hold.contact.number, unwanted, self.now)
            if self.answers[host]:
                self._hear(hold, news, unwanted)
        elif self._reached(host):
            self._none_left(hold)
        if not hold.over and hold.contact.judge(self.now):
            self._lose(hold, "it is out of reach")
        self._due(hold)

    def _hears(self, host: int, hold: Leasehold) -> bool:
        agent = self.agents[host]
        return self.hears[host] and agent.away_until is None and agent.knows(hold.number)

    def _see_out(self, host: int, hold: Leasehold) -> None:
        if self._hears(host, hold):
            self.agents[host].end(self.now)
        elif self._reached(host):
            self._none_left(hold)
        self._due(hold)

    def _none_left(self, hold: Leasehold) -> None:
        hold.over = True
        for each in list(hold.ids):
            self._ended_there(hold, each, RankEnd(None, "there is no such lease"))

    def _hear(self, hold: Leasehold, news: RankNews | None, unwanted: tuple[str, ...]) -> None:
        if news is None:
            self._lose(hold, "the lease is over")
            return
        hold.contact.heard(self.now, news.number)
        for each in news.ended:
            doubt = hold.tenants.doubt(each.rank)
            told = RankEnd(each.status, each.reason)
            self._ended_there(hold, each.rank, told if doubt is None else RankEnd(None, doubt))
        hold.tenants.told(unwanted, self.now)

    def _lose(self, hold: Leasehold, reason: str) -> None:
        hold.over = True
        hold.tenants.lose(self.now, reason)
        World.lost_elsewhere += 1

    def _due(self, hold: Leasehold) -> None:
        for rank_id, reason in hold.tenants.due(self.now):
            self._ended_there(hold, rank_id, RankEnd(None, reason))

    def _ended_there(self, hold: Leasehold, rank_id: str, end: RankEnd) -> None:
        hold.tenants.ended(rank_id)
        hold.ids.discard(rank_id)
        self.ends[rank_id] = end
        current = self.incarnation
        for rank, each in current.ids.items():
            if each == rank_id and rank in current.followers:
                self._follower_ended(rank, end)

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
            for each in (current.leader, *current.followers.values()):
                assert each.ordered or not self._is_alive(each.rank), self._tell(
                    f"nobody has told rank {each.rank} to end"
                )
        assert for_s <= over_s(self.held), self._tell("what is left of it is awaited for ever")

    def teardown(self) -> None:
        """Left alone, the next incarnation runs, whatever was."""
        if not hasattr(self, "places"):
            return
        self.hears, self.answers = [True, True], [True, True]
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
            self._is_alive(each.rank) and not each.ordered for each in ranks
        )

    # Looks

    def _host_of(self, rank: int) -> int | None:
        return None if rank == 0 else self.places[rank - 1]

    def _process(self, rank: int) -> Process | None:
        current = self.incarnation
        return current.leader if rank == 0 else current.followers.get(rank)

    def _is_alive(self, rank: int) -> bool:
        """One elsewhere may never have been started."""
        host, process = self._host_of(rank), self._process(rank)
        if host is None:
            return process is not None and process.alive
        return self.incarnation.ids.get(rank) in self.agents[host].ranks

    def _note(self, text: str) -> None:
        self.story.append(f"{self.now}: {text}")

    def _tell(self, what: str) -> str:
        return "\n".join([f"{self.now}: {what}", *self.story, str(self.incarnation)])
