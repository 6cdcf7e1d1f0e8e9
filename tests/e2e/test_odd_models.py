"""Folders of models in which something is odd: the others are served, and these can be removed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.folders import short_folder
from tests.support.gateway import BULKHEAD, START_S, Gateway, eventually
from tests.support.odd_models import ODD, odd
from tests.support.shapes import DEMO

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders() -> Iterator[Path]:
    with short_folder() as name:
        folders = Path(name).resolve()
        for text in ODD:
            odd(folders / text, text)
        shutil.copytree(DEMO, folders / "fine")
        (folders / "loop").symlink_to("loop")
        yield folders


@pytest.fixture(scope="module")
def gateway(folders: Path) -> Iterator[Gateway]:
    """Two of them have tables, and one is loaded at the start."""
    config = f"""
        [models]
        discover = ["{folders}"]
        [models.told]
        path = "{folders / "header-short-offsets"}"
        preload = true
        [models.text]
        path = "{folders / "config-text-list"}"
    """
    running = Gateway(models=(), config=config)
    yield running
    running.stop()


def _bulkhead(gateway: Gateway, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BULKHEAD_URL": gateway.url}
    command = [BULKHEAD, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_others_are_served(gateway: Gateway) -> None:
    assert gateway.say("Hello", "fine", max_tokens=4)
    assert eventually(lambda: gateway.model("told")["state"] == "failed", START_S)
    assert "model.safetensors" in gateway.model("told")["reason"]
    assert gateway.client.get("/v1/models").status_code == 200
    assert gateway.client.get("/api/tags").status_code == 200
    refused = gateway.chat("Hello", "text", max_tokens=4)
    assert refused.status_code == 503
    assert "text_config is [1]" in refused.text


def test_each_says_why_and_can_be_removed(gateway: Gateway, folders: Path) -> None:
    entries = json.loads(_bulkhead(gateway, "list", "--json").stdout)
    problems = {entry["source"]: entry["problem"] for entry in entries if entry["problem"]}
    assert str(folders / "header-list") in problems
    assert len(problems) > 40
    for name in ("header-short-offsets", "config-text-list"):
        refused = _bulkhead(gateway, "rm", str(folders / name), "--yes")
        assert "The configuration names it" in refused.stderr
    # Each of them is removed by the unit tests; each command looks at all of them again.
    for name in ("weights-pipe", "config-huge"):
        removed = _bulkhead(gateway, "rm", str(folders / name), "--yes")
        assert removed.returncode == 0, removed.stderr
        assert not (folders / name).exists()
    assert gateway.say("Hello", "fine", max_tokens=4)
