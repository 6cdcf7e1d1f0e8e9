from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.canned import CannedGateway


@pytest.fixture
def canned() -> Iterator[CannedGateway]:
    with CannedGateway() as server:
        yield server
