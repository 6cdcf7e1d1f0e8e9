"""What is concluded from wired pages, one story at a time."""

from __future__ import annotations

import pytest

from gateway.memory.stranded.policy import Finding, Held, Reading, Stranded

GB = 1_000_000_000
TOTAL = 128 * GB
KERNEL = 4 * GB


class Machine:
    """Gives a reading a second. `wired` is by whoever; what moves by less than half a GB has not
    moved, and what is less than 4 GB is not looked for.
    """

    def __init__(self, stranded: Stranded | None = None) -> None:
        self.stranded = stranded or Stranded(TOTAL)
        self.now = 0.0
        self.wired = KERNEL
        self.workers: dict[int, Held] = {}
        self._pid = 0
        self.seconds(5)

    def seconds(self, count: int) -> list[Finding]:
        found = []
        for _ in range(count):
            self.now += 1.0
            found += self.stranded.observe(Reading(self.now, self.wired, dict(self.workers)))
        return found

    def start(self, model: str = "demo", *, holds: int = 20 * GB, wires: int = 20 * GB) -> int:
        """Load a worker, let it compute, and leave it at that."""
        self._pid += 1
        self.workers[self._pid] = Held(model, holds, loads=True, works=True)
        self.seconds(5)
        self.wired += wires
        self.seconds(5)
        self.work(self._pid)
        return self._pid

    def work(self, pid: int, seconds: int = 90) -> None:
        self.workers[pid] = self.workers[pid]._replace(loads=False, works=True)
        self.seconds(seconds)

    def rest(self, pid: int, seconds: int = 30) -> None:
        self.workers[pid] = self.workers[pid]._replace(loads=False, works=False)
        self.seconds(seconds)

    def end(self, pid: int, *, back: int = 20 * GB, clean: bool = False) -> None:
        del self.workers[pid]
        self.stranded.ended(pid, self.now, clean=clean)
        self.wired -= back

    def prove(self, model: str = "demo") -> None:
        """A life of the model that gives everything back."""
        self.end(self.start(model), clean=True)
        self.seconds(100)


def test_what_came_back_is_not_missed() -> None:
    machine = Machine()
    machine.prove()
    machine.end(machine.start())
    assert machine.seconds(900) == []
    assert machine.stranded.bytes == machine.stranded.undecided_bytes == 0


def test_what_stays_after_a_violent_end_is_found_and_not_too_soon() -> None:
    machine = Machine()
    machine.prove()
    machine.end(machine.start(), back=GB)
    assert machine.seconds(179) == []
    assert machine.stranded.bytes == 0
    assert 18 * GB < machine.stranded.undecided_bytes <= 20 * GB, "nobody counts on it meanwhile"
    (finding,) = machine.seconds(1)
    assert finding == Finding("demo", 20 * GB, 19 * GB)
    assert (machine.stranded.bytes, machine.stranded.undecided_bytes) == (19 * GB, 0)


def test_a_worker_that_left_by_itself_has_stranded_nothing() -> None:
    machine = Machine()
    machine.prove()
    machine.end(machine.start(), back=0, clean=True)
    machine.seconds(59)
    assert machine.stranded.undecided_bytes == 20 * GB
    machine.seconds(1)
    assert machine.stranded.undecided_bytes == 0, "a minute is enough"
    assert machine.seconds(900) == []
    assert machine.stranded.bytes == machine.stranded.undecided_bytes == 0


def test_memory_that_comes_back_late_is_none() -> None:
    machine = Machine()
    machine.prove()
    machine.end(machine.start(), back=0)
    machine.seconds(40)
    for _ in range(20):
        machine.wired -= GB
        assert machine.seconds(1) == []
    assert machine.stranded.undecided_bytes == 0
    assert machine.seconds(900) == []


def test_a_worker_that_rests_may_have_wired_none_of_it() -> None:
    machine = Machine()
    machine.prove()
    pid = machine.start()
    machine.wired -= 20 * GB
    machine.rest(pid)
    machine.end(pid, back=0)
    assert machine.stranded.undecided_bytes == 0
    assert machine.seconds(900) == []


def test_one_that_was_seen_to_keep_it_at_rest_is_judged_at_rest() -> None:
    machine = Machine()
    machine.prove()
    pid = machine.start()
    for _ in range(3):
        machine.rest(pid)
        machine.work(pid, 10)
    machine.rest(pid)
    machine.end(pid, back=0)
    assert [each.missing_bytes for each in machine.seconds(300)] == [20 * GB]


def test_one_that_never_wired_strands_nothing() -> None:
    machine = Machine()
    machine.prove()
    machine.end(machine.start(wires=0), back=0)
    machine.wired += 30 * GB
    assert machine.seconds(900) == []


def test_another_program_that_wires_in_the_same_minute_leaves_it_open() -> None:
    """It could hide what came back: nobody knows, so nothing is said."""
    for delay_s, foreign_bytes in ((0, 30 * GB), (1, 20 * GB), (10, 20 * GB), (100, 40 * GB)):
        machine = Machine()
        machine.prove()
        machine.end(machine.start())
        machine.seconds(delay_s)
        machine.wired += foreign_bytes
        assert machine.seconds(900) == []


@pytest.mark.parametrize(("seconds", "found"), [(5, 0), (6, 20 * GB)])
def test_what_rose_just_before_the_end_may_hide_what_came_back(seconds: int, found: int) -> None:
    """That the process is gone may be known some seconds later."""
    machine = Machine()
    machine.prove()
    pid = machine.start()
    machine.wired += 30 * GB
    machine.seconds(1 + seconds)
    machine.end(pid, back=0)
    machine.seconds(300)
    assert machine.stranded.bytes == found


@pytest.mark.parametrize(("foreign", "found"), [(6 * GB, 20 * GB), (6 * GB + 1, 0)])
def test_a_small_part_may_be_hidden(foreign: int, found: int) -> None:
    machine = Machine()
    machine.prove()
    machine.end(machine.start(), back=0)
    machine.seconds(20)
    machine.wired += foreign
    machine.seconds(900)
    assert machine.stranded.bytes == found


@pytest.mark.parametrize(("back", "found"), [(6 * GB, 14 * GB), (7 * GB, 0)])
def test_where_a_good_part_came_back_so_did_the_rest(back: int, found: int) -> None:
    machine = Machine()
    machine.prove()
    machine.end(machine.start(), back=back)
    machine.seconds(900)
    assert machine.stranded.bytes == found


@pytest.mark.parametrize(("wires", "found"), [(4 * GB, 4 * GB), (4 * GB - 1, 0)])
def test_a_small_worker_is_not_looked_for(wires: int, found: int) -> None:
    machine = Machine()
    pid = machine.start(holds=16 * GB, wires=wires)
    assert [each.wired_bytes for each in machine.stranded.claims] == ([found] if found else [])
    machine.end(pid, back=wires, clean=True)
    machine.seconds(100)
    assert list(machine.stranded.proven) == (["demo"] if found else [])
    machine.end(machine.start(holds=16 * GB, wires=wires), back=0)
    machine.seconds(900)
    assert machine.stranded.bytes == found


def test_wired_pages_that_move_by_little_have_not_moved() -> None:
    machine = Machine()
    for moved, level in ((GB // 2 - 1, 0), (GB // 2, GB // 2), (1, GB // 2), (0, 0)):
        machine.wired = KERNEL + moved
        machine.seconds(1)
        assert machine.stranded.level_bytes == KERNEL + level


def test_they_may_rise_and_fall_slowly() -> None:
    machine = Machine()
    machine.workers[50] = Held("demo", 20 * GB, loads=True, works=True)
    for _ in range(40):
        machine.wired += GB // 2
        machine.seconds(1)
    machine.work(50)
    assert [each.wired_bytes for each in machine.stranded.claims] == [20 * GB]
    for _ in range(20):
        machine.wired -= GB // 2
        machine.rest(50, 1)
    assert [each.wired_bytes for each in machine.stranded.claims] == [10 * GB]
    for moved in (GB // 4, -GB // 4):
        machine.wired += moved
        machine.rest(50, 1)
    assert [each.wired_bytes for each in machine.stranded.claims] == [10 * GB], "noise is none"


def test_what_comes_back_is_that_of_the_last_to_end() -> None:
    """The others have had more time; and one that left by itself gives back for certain."""
    for clean, lost in ((False, "first"), (True, "second")):
        machine = Machine()
        machine.prove("first")
        machine.prove("second")
        first, second = machine.start("first"), machine.start("second")
        machine.end(first, back=0, clean=clean)
        machine.seconds(10)
        machine.end(second)
        assert [each.model_id for each in machine.seconds(300)] == [lost]


def test_a_model_is_known_to_give_back_once_it_was_seen() -> None:
    machine = Machine()
    machine.end(machine.start(), back=0)
    machine.seconds(100)
    assert list(machine.stranded.proven) == []
    machine.prove()
    assert list(machine.stranded.proven) == ["demo"]


def test_the_losses_of_two_models_do_not_confirm_each_other() -> None:
    machine = Machine()
    machine.end(machine.start("first"), back=0)
    machine.end(machine.start("second"), back=0)
    assert machine.seconds(900) == []


def test_what_turned_up_before_it_was_confirmed_is_not_found() -> None:
    machine = Machine()
    machine.end(machine.start(), back=0)
    machine.seconds(300)
    machine.wired -= 18 * GB
    machine.seconds(5)
    machine.end(machine.start(), clean=True)
    assert machine.seconds(100) == []
    assert machine.stranded.bytes == 0


def test_only_so_many_are_waited_for() -> None:
    """To be confirmed: the oldest of 17 is forgotten."""
    machine = Machine()
    models = [f"model-{number}" for number in range(17)]
    for pid in [machine.start(each) for each in models]:
        machine.end(pid, back=0)
    machine.seconds(200)
    machine.prove(models[0])
    assert machine.stranded.bytes == 0
    machine.prove(models[1])
    assert machine.stranded.bytes == 20 * GB


def test_another_program_that_wires_long_before_or_after_changes_nothing() -> None:
    machine = Machine()
    machine.prove()
    pid = machine.start()
    machine.wired += 30 * GB
    machine.seconds(300)
    machine.wired -= 30 * GB
    machine.seconds(300)
    machine.end(pid, back=0)
    assert [each.missing_bytes for each in machine.seconds(300)] == [20 * GB]
    machine.wired += 30 * GB
    machine.seconds(300)
    assert machine.stranded.bytes == 20 * GB


def test_the_first_life_of_a_model_proves_nothing_yet() -> None:
    """Its rise may have been another program's; one more life tells."""
    for back, total_bytes in ((20 * GB, 20 * GB), (0, 40 * GB)):
        machine = Machine()
        machine.end(machine.start(), back=0)
        assert machine.seconds(400) == []
        assert machine.stranded.undecided_bytes == 0, "it is held back for a bounded time"
        machine.end(machine.start(), back=back)
        machine.seconds(400)
        assert machine.stranded.bytes == total_bytes


def test_the_successor_may_wire_what_the_dead_one_gives_back() -> None:
    """Both at once leave wired pages where they were."""
    machine = Machine()
    machine.prove()
    machine.end(machine.start(), back=0)
    machine.workers[99] = Held("demo", 20 * GB, loads=True, works=True)
    assert machine.seconds(599) == []
    assert machine.stranded.undecided_bytes == 20 * GB
    assert machine.seconds(1) == []
    assert machine.stranded.bytes == machine.stranded.undecided_bytes == 0, "nobody waits longer"


def test_a_successor_that_wires_as_much_again_hides_nothing() -> None:
    machine = Machine()
    machine.prove()
    machine.end(machine.start(), back=0)
    pid = machine.start()
    machine.seconds(200)
    assert machine.stranded.bytes == 20 * GB
    machine.wired -= 20 * GB
    machine.rest(pid)
    assert machine.stranded.bytes == 20 * GB


def test_the_rest_of_another_worker_is_not_taken_for_its_return() -> None:
    machine = Machine()
    machine.prove()
    pid, other = machine.start(), machine.start("other", wires=15 * GB)
    machine.end(pid, back=0)
    machine.seconds(20)
    machine.wired -= 15 * GB
    machine.rest(other)
    machine.wired += 15 * GB
    machine.work(other, 20)
    machine.seconds(200)
    assert machine.stranded.bytes == 20 * GB


def test_it_decays_when_the_memory_turns_up() -> None:
    machine = Machine()
    machine.prove()
    machine.end(machine.start(), back=0)
    machine.seconds(300)
    machine.wired -= 12 * GB
    machine.seconds(2)
    assert machine.stranded.bytes == 8 * GB
    machine.wired -= 8 * GB
    machine.seconds(2)
    assert machine.stranded.bytes == 0


def test_a_sleep_of_the_machine_is_no_time_to_come_back() -> None:
    machine = Machine()
    machine.prove()
    machine.end(machine.start(), back=0)
    machine.seconds(10)
    machine.now += 3600.0
    assert machine.seconds(20) == []
    machine.wired -= 20 * GB
    assert machine.seconds(900) == []


def test_a_worker_of_which_nobody_told_is_no_question_for_long() -> None:
    machine = Machine()
    machine.prove()
    pid = machine.start()
    del machine.workers[pid]
    assert machine.seconds(900) == []
    machine.stranded.ended(pid, machine.now, clean=False)
    assert machine.seconds(900) == []


def test_a_coincidence_does_not_outweigh_the_other_lives_of_a_model() -> None:
    """Of one that wires nothing: another program wired while it loaded, and went as it ended."""
    machine = Machine()
    machine.prove()
    for _ in range(2):
        machine.end(machine.start(wires=0), back=0)
        machine.seconds(300)
    machine.end(machine.start(), back=0)
    assert machine.seconds(900) == []
    assert machine.stranded.bytes == 0


def _unwiring(machine: Machine, pid: int, times: int) -> None:
    for _ in range(times):
        machine.wired -= 20 * GB
        machine.rest(pid)
        machine.wired += 20 * GB
        machine.work(pid, 20)


def test_a_successor_that_unwires_as_its_model_does_takes_no_return_for_its_own() -> None:
    machine = Machine()
    pid = machine.start()
    _unwiring(machine, pid, 5)
    machine.end(pid, back=0)
    machine.seconds(5)
    machine.workers[99] = Held("demo", 20 * GB, loads=True, works=True)
    machine.seconds(2)
    machine.wired += 20 * GB
    machine.seconds(5)
    machine.wired -= 20 * GB
    machine.rest(99, 60)
    del machine.workers[99]
    machine.stranded.ended(99, machine.now, clean=True)
    machine.seconds(300)
    machine.end(machine.start())
    machine.seconds(300)
    assert machine.stranded.bytes == 20 * GB


def test_what_comes_back_slowly_as_the_successor_stops_is_not_the_successors() -> None:
    """It was seen to keep what it has at rest."""
    machine = Machine()
    machine.prove()
    pid = machine.start()
    for _ in range(5):
        machine.rest(pid)
        machine.work(pid, 10)
    machine.end(pid, back=4 * GB)
    machine.workers[99] = Held("demo", 20 * GB, loads=True, works=True)
    machine.seconds(1)
    machine.wired += 20 * GB - 4 * GB
    machine.seconds(1)
    machine.workers[99] = machine.workers[99]._replace(loads=False, works=False)
    for _ in range(3):
        machine.wired -= 4 * GB
        machine.seconds(1)
    assert machine.seconds(900) == []
    assert machine.stranded.bytes == 0


def test_two_that_load_at_once_wire_what_their_models_usually_do() -> None:
    machine = Machine()
    machine.prove("large")
    for _ in range(2):
        machine.end(machine.start("small", wires=2 * GB), back=2 * GB)
        machine.seconds(100)
    machine.workers |= {
        98: Held("large", 20 * GB, loads=True, works=True),
        99: Held("small", 20 * GB, loads=True, works=True),
    }
    machine.seconds(2)
    machine.wired += 22 * GB
    machine.seconds(2)
    machine.work(98)
    machine.work(99)
    machine.end(98, back=0)
    assert [each.model_id for each in machine.seconds(300)] == ["large"]
    assert machine.stranded.bytes == 20 * GB


def test_what_falls_while_a_model_rests_that_keeps_is_not_its_own() -> None:
    machine = Machine()
    machine.prove()
    pid = machine.start()
    for _ in range(5):
        machine.rest(pid)
        machine.work(pid, 10)
    machine.end(pid, clean=True)
    machine.seconds(100)
    pid = machine.start()
    machine.wired += 20 * GB
    machine.seconds(100)
    machine.rest(pid)
    machine.wired -= 20 * GB
    machine.seconds(60)
    machine.work(pid, 2)
    machine.end(pid, back=0)
    assert [each.missing_bytes for each in machine.seconds(300)] == [20 * GB]


def test_one_that_loads_for_long_wires_when_it_first_computes() -> None:
    machine = Machine()
    machine.prove()
    machine.workers[50] = Held("demo", 20 * GB, loads=True, works=True)
    machine.seconds(100)
    machine.work(50, 2)
    machine.wired += 20 * GB
    machine.seconds(60)
    machine.end(50, back=0)
    assert [each.missing_bytes for each in machine.seconds(300)] == [20 * GB]


def test_a_successor_that_never_wired_hides_nothing_once_it_has_left() -> None:
    """Had it wired what the dead one gave back, that would have fallen as it left."""
    for fallen, total_bytes in ((0, 20 * GB), (20 * GB, 0)):
        machine = Machine()
        machine.prove()
        machine.end(machine.start(), back=0)
        machine.workers[50] = Held("demo", 20 * GB, loads=True, works=True)
        machine.seconds(150)
        machine.end(50, back=0, clean=True)
        assert machine.seconds(50) == [], "it may still fall"
        machine.wired -= fallen
        machine.seconds(300)
        assert machine.stranded.bytes == total_bytes


def test_a_successor_that_died_without_a_trace_leaves_it_open() -> None:
    machine = Machine()
    machine.prove()
    machine.end(machine.start(), back=0)
    machine.workers[50] = Held("demo", 20 * GB, loads=True, works=True)
    machine.seconds(30)
    machine.end(50, back=0)
    assert machine.seconds(900) == []


def test_a_successor_at_rest_hides_nothing_if_its_model_unwires() -> None:
    machine = Machine()
    machine.prove()
    pid = machine.start()
    _unwiring(machine, pid, 5)
    machine.end(pid, back=0)
    machine.workers[50] = Held("demo", 20 * GB, loads=True, works=True)
    machine.seconds(5)
    machine.rest(50, 170)
    assert machine.stranded.bytes == 0
    machine.seconds(20)
    assert machine.stranded.bytes == 20 * GB


def test_one_that_loads_since_before_the_end_may_hide_what_comes_back() -> None:
    """It wired less than its model usually does, by as much as came back."""
    for begins_s in (4, 20):
        machine = Machine()
        machine.prove("other")
        machine.prove()
        pid = machine.start(wires=4 * GB)
        machine.workers[50] = Held("other", 20 * GB, loads=True, works=True)
        machine.seconds(begins_s)
        machine.end(pid, back=0)
        machine.seconds(2)
        machine.wired += 16 * GB
        machine.work(50)
        assert machine.seconds(900) == []
        assert machine.stranded.bytes == 0


def test_a_small_part_of_a_large_neighbour_may_be_all_that_a_small_one_had() -> None:
    machine = Machine()
    for _ in range(2):
        machine.end(machine.start("small", wires=5 * GB), back=5 * GB, clean=True)
        machine.seconds(100)
    machine.prove("large")
    machine.end(machine.start("small", wires=5 * GB), back=0)
    machine.workers[50] = Held("large", 20 * GB, loads=True, works=True)
    machine.seconds(2)
    machine.wired += 18 * GB
    machine.work(50)
    assert machine.seconds(900) == []
    assert machine.stranded.bytes == 0


def _swapped(machine: Machine, *, came_back: int) -> int:
    """A dead worker gives so much back while its successor wires 20 GB in the same second."""
    machine.end(machine.start(), back=0)
    machine.workers[50] = Held("demo", 20 * GB, loads=True, works=True)
    machine.seconds(3)
    machine.wired += 20 * GB - came_back
    machine.work(50, 100)
    return 50


def test_what_a_successor_wired_unseen_is_missed_when_it_dies() -> None:
    """The machine's wired pages have not moved; four lives have shown what the model wires."""
    for lives, total_bytes in ((4, 20 * GB), (3, 0)):
        machine = Machine()
        for _ in range(lives - 1):
            machine.prove()
        pid = _swapped(machine, came_back=20 * GB)
        assert machine.stranded.bytes == 0
        machine.end(pid, back=0)
        machine.seconds(300)
        assert machine.stranded.bytes == total_bytes


def test_what_a_successor_wired_unseen_comes_back_as_it_ends() -> None:
    machine = Machine()
    for _ in range(4):
        machine.prove()
    pid = _swapped(machine, came_back=20 * GB)
    machine.end(pid, back=20 * GB)
    assert machine.seconds(900) == []
    assert machine.stranded.bytes == machine.stranded.undecided_bytes == 0
