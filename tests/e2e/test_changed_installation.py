"""An upgrade under a gateway that runs: its new workers are of another version, and it says so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import EAGER_SPARES, sitecustomize
from tests.support.gateway import START_S, Gateway, eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gateway(installation: Path) -> Iterator[Gateway]:
    """It runs from a copy of the packages."""
    running = Gateway(
        "--spare",
        "1",
        models=("demo=a", "demo=b"),
        environment=sitecustomize(installation, EAGER_SPARES),
    )
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture(scope="module")
def upgraded(installation: Path, gateway: Gateway) -> Path:
    """Workers may refuse for another reason now. Returns where the files of before are."""
    eventually(lambda: _spares(gateway, "ready"), START_S)
    before = installation / "before"
    shutil.copytree(installation / "protocol", before)
    answers = installation / "protocol" / "answers.py"
    text = answers.read_text("utf-8")
    changed = text.replace('"internal_error"', '"internal_error", "out_of_sorts"')
    assert changed != text
    answers.write_text(changed, "utf-8")
    return before


def test_a_worker_of_another_version_is_no_worker(gateway: Gateway, upgraded: Path) -> None:
    # The spare had read its files before.
    assert gateway.load("a")["state"] == "ready"
    assert gateway.say("Hello", "a")
    # The next one hadn't.
    eventually(lambda: _spares(gateway, "foreign"), START_S)
    answer = gateway.order("load", "b")
    assert answer.status_code == 503
    message = answer.json()["error"]["message"]
    assert "protocol version" in message
    assert "restart the gateway" in message
    eventually(lambda: gateway.model("b")["worker"] is None)
    model = gateway.model("b")
    assert model["state"] == "failed"
    assert "restart the gateway" in model["reason"]
    assert "this side speaks" in gateway.log
    # Nobody waits for it, and nothing is tried again.
    refused = gateway.chat("What is Bulkhead?", "b")
    assert refused.status_code == 503
    assert refused.headers["x-should-retry"] == "false"
    assert [event["model"] for event in gateway.events("start")] == ["b"]
    assert len(_spares(gateway, "foreign")) == 1
    assert not gateway.events("breaker")
    # The one that runs is as it was.
    assert gateway.say("Hello", "a")


def test_it_can_be_loaded_once_the_files_are_as_before(
    installation: Path, gateway: Gateway, upgraded: Path
) -> None:
    shutil.rmtree(installation / "protocol")
    shutil.copytree(upgraded, installation / "protocol")
    assert gateway.load("b")["state"] == "ready"


def _spares(gateway: Gateway, change: str) -> list[object]:
    return [event for event in gateway.events("spare") if event["change"] == change]
