"""The Hugging Face cache is where huggingface_hub has it, which pulls write to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gateway.config.model_folders import hugging_face_cache

pytestmark = pytest.mark.processes

VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"XDG_CACHE_HOME": "/caches"},
        {"XDG_CACHE_HOME": "/caches", "HF_HOME": "~/hf"},
        {"HF_HOME": "/hf", "HUGGINGFACE_HUB_CACHE": "/older"},
        {"HF_HUB_CACHE": "$HOME/models", "HF_HOME": "/hf"},
    ],
)
def test_the_place(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    theirs = subprocess.run(
        [sys.executable, "-c", "from huggingface_hub import constants as c; print(c.HF_HUB_CACHE)"],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert str(hugging_face_cache()) == theirs.stdout.strip()
