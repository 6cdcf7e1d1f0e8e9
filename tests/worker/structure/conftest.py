"""The demo model, for all of these tests."""

from __future__ import annotations

import pytest

from tests.support import shapes
from worker.load.loading import LoadedModel, load


@pytest.fixture(scope="session")
def model() -> LoadedModel:
    return load(str(shapes.DEMO), lambda _done, _total: None, lambda: False)
