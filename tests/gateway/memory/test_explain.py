"""Why requests wait inside a model that is loaded, in a text."""

from __future__ import annotations

from gateway.config.model import Group, Groups
from gateway.memory import explain
from gateway.memory.allocation import MemoryNeed
from gateway.memory.ledger import Claim, Ledger

GB = 1_000_000_000


def _ledger() -> Ledger:
    ledger = Ledger(10 * GB)
    ledger.enter(Claim("m", 4 * GB, 0, 0.0))
    allocation = ledger.allocation("m")
    assert allocation is not None
    allocation.need = MemoryNeed(wanted_bytes=12 * GB)
    return ledger


def test_wait_names_needed_and_free_bytes() -> None:
    text = explain.short(_ledger(), "m", 3)
    assert text == "3 requests wait for memory: 8.0 GB more is wanted, 6.0 GB are free"
    text = explain.short(_ledger(), "m", 1)
    assert text == "1 request waits for memory: 8.0 GB more is wanted, 6.0 GB are free"


def test_while_it_gives_back() -> None:
    ledger = _ledger()
    allocation = ledger.allocation("m")
    assert allocation is not None
    assert explain.returning(ledger, "m") is None
    allocation.obeyed_bytes = 5 * GB
    text = explain.short(ledger, "m", 2)
    assert text is not None
    assert text.endswith("8.0 GB more is wanted, and 1.0 GB are being called back")
    text = explain.returning(ledger, "m")
    assert text == "1.0 GB of what it holds are being called back"
    assert explain.returning(ledger, "unknown") is None


def test_why_there_can_be_no_more() -> None:
    ledger = _ledger()
    text = explain.at_best(ledger, "m", 10 * GB)
    assert text == "At most 10.0 GB of the memory budget of 10.0 GB can be had for it at present."
    ledger.enter(Claim("p", 2 * GB, 0, 0.0, pinned=True))
    ledger.enter(Claim("q", 1 * GB, 0, 0.0))
    ledger.stranded_bytes, ledger.undecided_bytes = 3 * GB, GB
    text = explain.at_best(ledger, "m", -1)
    assert text.endswith(
        "be had for it at present, as p keeps 2.0 GB (pinned), 2.0 GB are stranded."
    )
    assert text.startswith("At most 0 B of ")
    ledger.undecided_bytes = 3 * GB
    assert "stranded" not in explain.at_best(ledger, "m", 0)
    assert "keeps" not in explain.at_best(Ledger(GB), "p", 0)


def test_wait_names_the_rivals() -> None:
    ledger = Ledger(10 * GB)
    group = Group("large", ("m", "n"), swap=True)
    ledger.arrange(Groups([group]))
    ledger.enter(Claim("n", 2 * GB, 0, 0.0))
    text = explain.waiting(ledger, Claim("m", 4 * GB, 0, 0.0))
    place = "groups.large has one model loaded at a time (swap), now n"
    assert text == (
        f"{place}: it makes room once it is idle, or after queue.max_wait_s; "
        "`bulkhead unload n` unloads it now"
    ), "what it needs is free, and no reason"
    allocation = ledger.allocation("n")
    assert allocation is not None
    allocation.ending = True
    text = explain.waiting(ledger, Claim("m", 4 * GB, 0, 0.0))
    assert text == f"{place}; n is ending"
    text = explain.waiting(ledger, Claim("m", 9 * GB, 0, 0.0))
    assert text.startswith(f"{place}; n is ending; it needs 9.0 GB and 8.0 GB of 10.0 GB are free")
    assert explain.displaced("n", "m", group) == (
        "'m' has taken its place, as groups.large has one loaded at a time (swap); the next "
        "request for it, or `bulkhead load n`, takes it back; to have both loaded, take one out of "
        "the group"
    )


def test_nothing_waits() -> None:
    assert explain.short(_ledger(), "m", 0) is None
    assert explain.short(_ledger(), "unknown", 2) is None
