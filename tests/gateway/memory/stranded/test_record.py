"""What one gateway knows and the next one takes up."""

from __future__ import annotations

from pathlib import Path

from gateway.memory.stranded.account import Claim
from gateway.memory.stranded.at_start import FRESH_S, stranded_at_start, take_up
from gateway.memory.stranded.habits import Shown
from gateway.memory.stranded.policy import Held, Reading, Stranded
from gateway.memory.stranded.record import StrandedRecord, read_stranded, write_stranded
from gateway.memory.stranded.renewal import Renewal
from gateway.system.boot import present_boot

GB = 1_000_000_000
TOTAL = 64 * GB
CLAIM = Claim(
    "demo",
    held_bytes=32 * GB,
    most_bytes=30 * GB,
    wired_bytes=30 * GB,
    judged=True,
    unclear=False,
    tells=True,
    rests_kept=0,
    rests_fallen=0,
)
SHOWN = Shown("demo", shares=(0.9, 0.95), rests_kept=0, rests_fallen=7)
KNOWN = StrandedRecord(7 * GB, 100.0, 2 * GB, 50 * GB, ("demo",), (SHOWN,), (CLAIM,))


def test_it_survives_a_gateway_and_not_a_boot(tmp_path: Path) -> None:
    path = tmp_path / "stranded.json"
    assert read_stranded(path) == StrandedRecord()
    write_stranded(path, KNOWN)
    assert read_stranded(path) == KNOWN
    path.write_bytes(path.read_bytes().replace(present_boot().encode(), b"another boot"))
    assert read_stranded(path) == StrandedRecord()
    path.write_bytes(b"{")
    assert read_stranded(path) == StrandedRecord()


def test_only_macos_has_wired_pages_of_that_kind(tmp_path: Path) -> None:
    path = tmp_path / "stranded.json"
    write_stranded(path, KNOWN)
    assert stranded_at_start(path, follows_crash=True, platform="linux") is None
    stranded = stranded_at_start(path, follows_crash=False, platform="darwin")
    assert stranded is not None
    assert stranded.bytes == 7 * GB


def _look(stranded: Stranded, wired_bytes: int, begin: int, seconds: int) -> list[int]:
    found = []
    for second in range(begin, begin + seconds):
        reading = Reading(float(second), wired_bytes, {})
        found += [each.missing_bytes for each in stranded.observe(reading)]
    return found


def test_workers_that_died_with_their_gateway_are_judged_by_the_next_one() -> None:
    stranded = take_up(KNOWN, TOTAL, 100.0 + FRESH_S, follows_crash=True)
    _look(stranded, 50 * GB, 0, 10)
    assert stranded.undecided_bytes == 30 * GB, "nobody should count on it"
    assert _look(stranded, 50 * GB, 10, 600) == [30 * GB]
    assert (stranded.bytes, stranded.undecided_bytes) == (37 * GB, 0)


def _found(claim: Claim, *, shown: Shown = SHOWN, proven: tuple[str, ...] = ("demo",)) -> list[int]:
    record = StrandedRecord(0, 100.0, 2 * GB, 50 * GB, proven, (shown,), (claim,))
    stranded = take_up(record, TOTAL, 110.0, follows_crash=True)
    return _look(stranded, 50 * GB, 0, 900)


def test_they_are_judged_as_the_gateway_that_saw_them_live_would_have() -> None:
    assert _found(CLAIM) == [30 * GB]
    assert _found(CLAIM._replace(judged=False)) == [], "it may have unwired it at rest"
    assert _found(CLAIM, proven=()) == [], "nobody has seen it wire and give back"
    coincidences = SHOWN._replace(shares=(0.0, 0.0))
    assert _found(CLAIM, shown=coincidences) == [], "other lives have wired nothing"


def test_what_their_lives_have_shown_is_known_to_the_gateway_after_the_next() -> None:
    living = CLAIM._replace(rests_kept=5, rests_fallen=1)
    record = StrandedRecord(0, 100.0, 2 * GB, 50 * GB, (), (SHOWN,), (living,))
    stranded = take_up(record, TOTAL, 110.0, follows_crash=True)
    assert stranded.habits == [SHOWN]
    _look(stranded, 50 * GB, 0, 1)
    shares = (*SHOWN.shares, 30 / 32)
    assert stranded.habits == [Shown("demo", shares, rests_kept=5, rests_fallen=8)]
    mixed = CLAIM._replace(most_bytes=20 * GB, unclear=True)
    for claim in (CLAIM._replace(tells=False), mixed):
        record = StrandedRecord(0, 100.0, 2 * GB, 50 * GB, (), (SHOWN,), (claim,))
        stranded = take_up(record, TOTAL, 110.0, follows_crash=True)
        _look(stranded, 50 * GB, 0, 1)
        assert stranded.habits == [SHOWN]


def test_they_may_have_given_it_back() -> None:
    stranded = take_up(KNOWN, TOTAL, 110.0, follows_crash=True)
    assert _look(stranded, 20 * GB, 0, 900) == []
    assert (stranded.bytes, stranded.undecided_bytes) == (7 * GB, 0)


def test_after_an_orderly_end_or_a_long_time_nothing_is_said_of_them() -> None:
    for now, crashed in ((110.0, False), (101.0 + FRESH_S, True), (50.0, True)):
        stranded = take_up(KNOWN, TOTAL, now, follows_crash=crashed)
        assert _look(stranded, 50 * GB, 0, 900) == []
        assert (stranded.bytes, stranded.undecided_bytes) == (7 * GB, 0)
        assert stranded.proven == {"demo": [0]}


def _loaded(stranded: Stranded, begin: int, seconds: int, wired_bytes: int) -> None:
    for second in range(begin, begin + seconds):
        workers = {7: Held("demo", 20 * GB, loads=False, works=True)}
        stranded.observe(Reading(float(second), wired_bytes, workers))


def test_it_is_written_when_it_has_changed_and_often_enough_for_a_crash() -> None:
    stranded, renewal = Stranded(TOTAL), Renewal()
    _look(stranded, 3 * GB, 0, 1)
    first = renewal.due(stranded, 1000.0)
    assert first is not None
    assert (first.floor_bytes, first.claims) == (3 * GB, ())
    assert renewal.due(stranded, 9000.0) is None, "there is nothing to lose"
    _loaded(stranded, 1, 3, 3 * GB)
    _loaded(stranded, 4, 3, 23 * GB)
    claimed = renewal.due(stranded, 9001.0)
    assert claimed is not None
    (claim,) = claimed.claims
    assert claimed.level_bytes == 23 * GB
    assert claim[:5] == ("demo", 20 * GB, 20 * GB, 20 * GB, True)
    for now in (9001.0, 9001.5, 9030.0):
        assert renewal.due(stranded, now) is None
    assert renewal.due(stranded, 9062.0) is not None
    _loaded(stranded, 7, 3, 25 * GB)
    assert renewal.due(stranded, 9065.0) is None, "not every second"
    assert renewal.due(stranded, 9073.0) is not None
    assert renewal.due(stranded, 8000.0) is not None, "the clock was set back"


def test_the_figures_of_a_crashed_gateway_hold_from_their_writing_on() -> None:
    for now in (KNOWN.at, KNOWN.at + 0.5):
        stranded = take_up(KNOWN, TOTAL, now, follows_crash=True)
        assert (stranded.floor_bytes, stranded.level_bytes) == (2 * GB, 50 * GB)
        _look(stranded, 50 * GB, 0, 10)
        assert stranded.undecided_bytes == 30 * GB
    stranded = take_up(KNOWN, TOTAL, KNOWN.at + FRESH_S, follows_crash=False)
    assert (stranded.floor_bytes, stranded.level_bytes) == (2 * GB, None)


def test_a_record_can_not_owe_memory() -> None:
    stranded = take_up(StrandedRecord(bytes=-GB), TOTAL, 100.0, follows_crash=False)
    assert stranded.bytes == 0
    stranded = take_up(StrandedRecord(), TOTAL, 100.0, follows_crash=False)
    assert stranded.bytes == 0


def test_the_end_of_a_worker_is_written_at_once() -> None:
    """What its life has shown would be lost with the gateway."""
    stranded, renewal = Stranded(TOTAL), Renewal()
    _look(stranded, 3 * GB, 0, 1)
    _loaded(stranded, 1, 3, 3 * GB)
    _loaded(stranded, 4, 30, 23 * GB)
    assert renewal.due(stranded, 1000.0) is not None
    assert renewal.due(stranded, 1001.0) is None
    stranded.ended(7, 34.0, clean=True)
    ended = renewal.due(stranded, 1002.0)
    assert ended is not None
    assert ended.habits == (Shown("demo", (1.0,), 0, 0),)


def test_what_a_worker_holds_changes_too_often_to_be_written_each_time() -> None:
    stranded, renewal = Stranded(TOTAL), Renewal()
    _look(stranded, 3 * GB, 0, 1)
    _loaded(stranded, 1, 3, 3 * GB)
    _loaded(stranded, 4, 30, 23 * GB)
    assert renewal.due(stranded, 1000.0) is not None
    workers = {7: Held("demo", 21 * GB, loads=False, works=True)}
    stranded.observe(Reading(34.0, 23 * GB, workers))
    assert renewal.due(stranded, 1015.0) is None
    workers = {7: Held("demo", 21 * GB, loads=False, works=False)}
    for second in range(35, 50):
        stranded.observe(Reading(float(second), 23 * GB, workers))
    resting = renewal.due(stranded, 1016.0)
    assert resting is not None, "nobody knows any more what it has wired"
    assert [each.judged for each in resting.claims] == [False]
