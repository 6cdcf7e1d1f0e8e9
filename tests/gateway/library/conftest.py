from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hub import Hub
from tests.support.pulls import NAME, model_files


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub({NAME: model_files()}) as running:
        yield running
