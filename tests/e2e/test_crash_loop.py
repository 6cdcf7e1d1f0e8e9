"""A gateway that crashes in a loop doesn't eat the machine."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.memory.leak_check import StrandedRecord, write_stranded
from gateway.server.process import LIMIT
from tests.support.folders import short_folder
from tests.support.gateway import START_S, Gateway, eventually

PRELOAD = '[models.demo]\npath = "demo"\npreload = true\n'
GB = 1_000_000_000


@pytest.fixture
def state_dir() -> Iterator[Path]:
    with short_folder(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.mark.slow
def test_after_a_few_unclean_starts_nothing_is_preloaded(
    start_gateway: Callable[..., Gateway], state_dir: Path
) -> None:
    options = {"models": (), "config": PRELOAD}
    for _ in range(LIMIT):
        crashing = Gateway("--state-dir", str(state_dir), **options)  # type: ignore[arg-type]
        assert crashing.status()["reason"] is None
        assert crashing.model()["state"] != "unloaded"
        crashing.process.send_signal(signal.SIGKILL)
        crashing.process.wait()
        crashing.stop()

    careful = start_gateway("--state-dir", str(state_dir), **options)
    status = careful.status()
    assert status["models"][0]["state"] == "unloaded"
    assert f"the last {LIMIT} starts" in status["reason"]
    events = careful.client.get("/admin/v1/events?recent=20&follow=0").text
    assert '"event":"caution"' in events
    assert "event=caution" in careful.log
    shown = CliRunner().invoke(main, ["status", "--url", careful.url]).output
    assert f"Careful: the last {LIMIT} starts" in shown
    assert careful.say("Hello")
    assert careful.model()["state"] == "ready"
    assert careful.stop() == 0

    healed = start_gateway("--state-dir", str(state_dir), **options)
    assert healed.status()["reason"] is None
    eventually(lambda: healed.model()["state"] == "ready", START_S)


def test_stranded_memory_of_a_mac_means_nothing_elsewhere(
    start_gateway: Callable[..., Gateway], state_dir: Path
) -> None:
    if sys.platform == "darwin":
        pytest.skip("wired pages are judged here")
    write_stranded(state_dir / "stranded.json", StrandedRecord(bytes=3 * GB))
    running = start_gateway("--state-dir", str(state_dir))
    assert running.status()["memory"]["stranded_bytes"] == 0
    assert running.stop() == 0


def test_an_orderly_end_forgets_the_start(
    start_gateway: Callable[..., Gateway], state_dir: Path
) -> None:
    running = start_gateway("--state-dir", str(state_dir))
    assert len(json.loads((state_dir / "starts.json").read_text())["at"]) == 1
    assert running.stop() == 0
    assert json.loads((state_dir / "starts.json").read_text())["at"] == []
