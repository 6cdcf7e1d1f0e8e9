from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.canned import CannedGateway
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
    talker = interpreter(folder / "talker", r"printf 'first\nsecond\n\033[31mthird\033[0m\n'")
    slow = interpreter(folder / "slow", f"sleep {SLOW_S}")
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


def interpreter(path: Path, before: str) -> Path:
    path.write_text(f'#!/bin/sh\n{before}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def canned() -> Iterator[CannedGateway]:
    with CannedGateway() as server:
        yield server
