from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.prompt_store.store import PromptStore
from tests.protocol.prompt_store.tree import PLENTY, Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "prompts"


@pytest.fixture
def store(folder: Path, clock: Clock) -> Iterator[PromptStore]:
    """With plenty of room."""
    opened = PromptStore(folder, PLENTY, PLENTY, clock=clock)
    yield opened
    opened.close()
