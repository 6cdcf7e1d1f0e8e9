from __future__ import annotations

import signal

import pytest

from tests.cli.conftest import SPACED_ID
from tests.cli.terminal import bulkhead, started
from tests.support.gateway import Gateway


@pytest.fixture
def talked(fleet: Gateway) -> Gateway:
    """The fleet, after its talker has talked."""
    fleet.load(SPACED_ID)
    return fleet


def test_prints_what_the_worker_printed_without_colours(talked: Gateway) -> None:
    done = bulkhead("logs", SPACED_ID, url=talked.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("first\nsecond\nthird\n")


def test_takes_an_alias_and_a_number_of_lines(talked: Gateway) -> None:
    done = bulkhead("logs", "--lines", "1", "other", url=talked.url)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert bulkhead("logs", "-n", "0", "other", url=talked.url).stdout == ""


def test_follows_until_interrupted(talked: Gateway) -> None:
    with started("logs", "--follow", "-n", "1", SPACED_ID, url=talked.url) as following:
        assert following.stdout is not None
        following.stdout.readline()
        talked.order("restart", SPACED_ID).raise_for_status()
        assert [following.stdout.readline() for _ in range(3)] == ["first\n", "second\n", "third\n"]
        following.send_signal(signal.SIGINT)
        _, stderr = following.communicate(timeout=20)
    assert (following.returncode, stderr) == (130, "")
