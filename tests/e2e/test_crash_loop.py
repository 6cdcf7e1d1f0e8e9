"""A gateway that crashes in a loop doesn't eat the machine."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.boot import present_boot
from gateway.cli import main
from gateway.memory.host import host_memory, resident_bytes
from gateway.starts import LIMIT
from tests.support.gateway import Gateway, eventually

PRELOAD = '[models.demo]\npath = "demo"\npreload = true\n'
GB = 1_000_000_000


@pytest.fixture
def state_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bh-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


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
    assert careful.say("What is Bulkhead?")
    assert careful.model()["state"] == "ready"
    assert careful.stop() == 0

    healed = start_gateway("--state-dir", str(state_dir), **options)
    assert healed.status()["reason"] is None
    eventually(lambda: healed.model()["state"] == "ready")


def test_stranded_memory_is_looked_for_before_anything_is_loaded(
    start_gateway: Callable[..., Gateway], state_dir: Path
) -> None:
    """The machine of the gateway before had 3 GB less that belong to nobody."""
    host = host_memory()
    unowned_bytes = host.total_bytes - host.available_bytes - resident_bytes(())
    stranded = {"bytes": 0, "base_bytes": unowned_bytes - 3 * GB}
    record = {"boot": present_boot(), "stranded": stranded}
    (state_dir / "stranded.json").write_text(json.dumps(record))
    (state_dir / "starts.json").write_text(json.dumps({"at": [0.0]}))
    running = start_gateway("--state-dir", str(state_dir), models=(), config=PRELOAD)
    assert GB < running.status()["memory"]["stranded_bytes"] < 5 * GB
    eventually(lambda: running.model()["state"] == "ready")
    answer = running.client.get("/admin/v1/events?recent=100&follow=0").text
    events = [json.loads(each[6:]) for each in answer.splitlines() if each.startswith("data: {")]
    assert events[0]["event"] == "stranded"
    admitted = next(each for each in events if each["event"] == "admit")
    assert admitted["id"] > events[0]["id"]


def test_an_orderly_end_leaves_a_base_to_compare_with(
    start_gateway: Callable[..., Gateway], state_dir: Path
) -> None:
    running = start_gateway("--state-dir", str(state_dir))
    record = json.loads((state_dir / "stranded.json").read_text())
    assert record["stranded"]["bytes"] == 0
    assert isinstance(record["stranded"]["base_bytes"], int)
    assert len(json.loads((state_dir / "starts.json").read_text())["at"]) == 1
    assert running.stop() == 0
    assert json.loads((state_dir / "starts.json").read_text())["at"] == []
