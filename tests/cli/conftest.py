from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.canned import CannedGateway
from tests.support.faults import wrapped_python
from tests.support.gateway import Gateway

# Longer than a stream stays silent before its first comment.
SLOW_S = 6
SPACED_ID = "org/my model"


@pytest.fixture(scope="session")
def gateway() -> Iterator[Gateway]:
    """A gateway with the demo model, shared by all tests of the folder."""
    running = Gateway()
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with models that talk, dawdle, and can't be loaded."""
    folder = tmp_path_factory.mktemp("fleet")
    broken = folder / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    talker = wrapped_python(folder / "talker", r"printf 'first\nsecond\n\033[31mthird\033[0m\n'")
    slow = wrapped_python(folder / "slow", f"sleep {SLOW_S}")
    running = Gateway(
        models=(),
        config=f"""
            [models."{SPACED_ID}"]
            path = "demo"
            aliases = ["other"]
            python = "{talker}"
            [models.slow]
            path = "demo"
            python = "{slow}"
            [models.broken]
            path = "{broken}"
        """,
    )
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture
def canned() -> Iterator[CannedGateway]:
    with CannedGateway() as server:
        yield server
