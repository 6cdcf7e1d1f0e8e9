from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.canned import CannedGateway
from tests.doctor.machine import Machine
from tests.support.folders import short_folder


@pytest.fixture
def canned() -> Iterator[CannedGateway]:
    with CannedGateway() as server:
        yield server


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Short, since the paths of sockets are bounded; pytest's are not."""
    with short_folder() as folder:
        yield Machine(Path(folder))
