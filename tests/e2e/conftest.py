"""What several of these tests start from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages, for another version of them to be put in its place."""
    folder = tmp_path_factory.mktemp("installation")
    for package in ("gateway", "worker", "protocol"):
        shutil.copytree(
            _ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    return folder
