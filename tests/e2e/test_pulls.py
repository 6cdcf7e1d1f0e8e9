"""Models from a hub, through a gateway: pulled, found, served, listed, removed."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from tests.cli.terminal import bulkhead
from tests.support.gateway import Gateway, eventually, gone
from tests.support.hub import Hub
from tests.support.pulls import left, model_files
from tests.support.shapes import DEMO

pytestmark = pytest.mark.slow

SMALL = "org/small"
SLOW = "org/slow-4bit"
WIDE = "org/wide"
RATE = 4e5


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    small = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
    config = json.loads(small["config.json"]) | {
        "num_hidden_layers": 200,
        "num_key_value_heads": 512,
        "head_dim": 512,
    }
    wide = model_files() | {"config.json": json.dumps(config).encode()}
    with Hub({SMALL: small, SLOW: model_files(shard_bytes=3_000_000), WIDE: wide}) as running:
        yield running


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def gateway(hub: Hub, cache: Path) -> Iterator[Gateway]:
    running = Gateway(
        models=(),
        config=f'[hub]\nendpoint = "{hub.url}"\n[memory]\nbudget = "4GB"\n',
        environment={"HF_HUB_CACHE": str(cache)},
    )
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture(autouse=True)
def nothing_left(gateway: Gateway, hub: Hub, cache: Path) -> Iterator[None]:
    yield
    hub.rate = None
    for pull in pulls(gateway):
        gateway.client.delete(f"/admin/v1/pulls/{pull['id']}").raise_for_status()
    for entry in library(gateway):
        if entry["state"] == "ready":
            gateway.order("unload", entry["ids"][0]).raise_for_status()
        gateway.client.delete(f"/admin/v1/library/{entry['source']}").raise_for_status()
    assert left(cache) == []


def start_pull(gateway: Gateway, model: str, **body: Any) -> dict[str, Any]:
    answer = gateway.client.post("/admin/v1/pulls", json={"model": model, **body})
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


def followed(gateway: Gateway, pull_id: str) -> list[dict[str, Any]]:
    """Every status until it is over."""
    with gateway.client.stream("GET", f"/admin/v1/pulls/{pull_id}") as stream:
        lines = [line for line in stream.iter_lines() if line.startswith("data: ")]
    return [json.loads(text[6:]) for text in lines]


def pulls(gateway: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gateway.client.get("/admin/v1/pulls").json()["pulls"]
    return found


def status(gateway: Gateway, pull_id: str) -> dict[str, Any]:
    answer = gateway.client.get(f"/admin/v1/pulls/{pull_id}?follow=0")
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def library(gateway: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gateway.client.get("/admin/v1/library").json()["models"]
    return found


def pullers(pid: int) -> list[psutil.Process]:
    """The processes of pulls."""
    found = []
    for child in psutil.Process(pid).children():
        # One that has just ended has none.
        with contextlib.suppress(psutil.Error):
            if "gateway.library.hub_program" in child.cmdline():
                found.append(child)
    return found


def pull_slowly(gateway: Gateway, hub: Hub) -> str:
    """A pull that is in the middle of its files."""
    hub.rate = RATE
    pull_id: str = start_pull(gateway, SLOW)["id"]
    eventually(lambda: (status(gateway, pull_id)["done_bytes"] or 0) > 100_000)
    return pull_id


def test_a_model_is_pulled_and_then_it_answers(gateway: Gateway) -> None:
    assert gateway.client.get("/v1/models").json()["data"] == []
    seen = followed(gateway, start_pull(gateway, SMALL)["id"])
    assert [seen[0]["state"], seen[-1]["state"]] == ["preparing", "done"]
    assert seen[-1]["offered_as"] == "small"
    assert seen[-1]["done_bytes"] == seen[-1]["total_bytes"]
    assert seen[-1]["outlook"]["verdict"] == "fits"
    assert (seen[-1]["outlook"]["row_tokens"], seen[-1]["outlook"]["rows"] > 0) == (8000, True) or (
        seen[-1]["outlook"]["row_tokens"] < 8000
    )
    assert gateway.say("Hello", "small", max_tokens=5)
    (entry,) = library(gateway)
    assert entry["source"] == SMALL
    assert (entry["ids"], entry["state"], entry["problem"]) == (["small"], "ready", None)
    assert entry["last_used_at"] is not None
    assert "text" in entry["abilities"]
    kept = gateway.client.delete(f"/admin/v1/library/{SMALL}")
    assert (kept.status_code, "bulkhead unload small" in kept.text) == (400, True)
    why = gateway.client.get(f"/admin/v1/removals/{SMALL}")
    assert (why.status_code, why.json()) == (400, kept.json())
    gateway.order("unload", "small").raise_for_status()
    would = gateway.client.get(f"/admin/v1/removals/{SMALL}").json()
    assert would == {"source": SMALL, "reclaimed_bytes": entry["size_bytes"]}
    asked = gateway.client.delete(f"/admin/v1/library/{SMALL}", params={"dry_run": 1})
    assert (asked.status_code, "/admin/v1/removals/" in asked.text) == (400, True)
    assert library(gateway) != []
    kinds = [(event["change"], event["name"]) for event in gateway.events("pull")]
    assert kinds == [("began", SMALL), ("done", SMALL)]


def test_a_cancelled_one_leaves_no_process_and_only_its_part(
    gateway: Gateway, hub: Hub, cache: Path
) -> None:
    pull_id = pull_slowly(gateway, hub)
    (process,) = pullers(gateway.pid)
    cancelled = gateway.client.delete(f"/admin/v1/pulls/{pull_id}")
    assert cancelled.json()["state"] == "cancelled"
    assert gone(process.pid)
    assert not pullers(gateway.pid)
    names = left(cache)
    assert names
    assert all("/blobs/" in name for name in names)
    assert gateway.client.get("/v1/models").json()["data"] == []
    (entry,) = library(gateway)
    assert (entry["ids"], entry["part_bytes"] > 0) == ([], True)
    assert "pull it to go on" in entry["problem"]
    # Another one goes on.
    hub.rate = None
    hub.ranges.clear()
    assert followed(gateway, start_pull(gateway, SLOW)["id"])[-1]["state"] == "done"
    assert any(not span.startswith("bytes=0-") for span in hub.ranges if span)


def test_a_pull_survives_the_death_of_its_process(gateway: Gateway, hub: Hub) -> None:
    pull_id = pull_slowly(gateway, hub)
    for _ in range(2):
        (process,) = eventually(lambda: pullers(gateway.pid))
        process.kill()
        eventually(lambda pid=process.pid: gone(pid))
    hub.rate = None
    assert followed(gateway, pull_id)[-1]["state"] == "done"


def test_second_pull_of_a_model_joins_and_a_fourth_pull_is_refused(
    gateway: Gateway, hub: Hub
) -> None:
    pull_id = pull_slowly(gateway, hub)
    assert start_pull(gateway, SLOW)["id"] == pull_id
    # Wherever they end: there are three at a time.
    hub.api_answers = []
    start_pull(gateway, "org/slow:4bit")
    start_pull(gateway, "Org/slow-4bit:other")
    answers = [
        gateway.client.post("/admin/v1/pulls", json={"model": f"org/m{index}"})
        for index in range(4)
    ]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert int(refused[0].headers["retry-after"]) > 0
    bad = gateway.client.post("/admin/v1/pulls", json={"model": "small"})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "model")
    assert gateway.client.get("/admin/v1/pulls/none").status_code == 404


def test_pull_warns_first_that_a_model_will_not_fit(gateway: Gateway, cache: Path) -> None:
    last = followed(gateway, start_pull(gateway, WIDE)["id"])[-1]
    assert (last["state"], last["code"]) == ("failed", "insufficient_memory")
    assert "won't fit" in last["reason"]
    assert left(cache) == []
    assert followed(gateway, start_pull(gateway, WIDE, force=True)["id"])[-1]["state"] == "done"


def test_the_commands(gateway: Gateway) -> None:
    # As a process, since progress goes to one stream and the outcome to the other.
    done = bulkhead("pull", SMALL, url=gateway.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{SMALL} is there (")
    assert done.stdout.endswith(": bulkhead chat small\n")
    assert "It will fit" in done.stderr
    listed = invoke(gateway, "list")
    assert listed.output.splitlines()[1].split()[0] == "small"
    shown = invoke(gateway, "show", "small")
    assert f"source         {SMALL}\n" in shown.output
    assert json.loads(invoke(gateway, "list", "--json").output) == library(gateway)
    kept = invoke(gateway, "rm", "small", stdin="n\n")
    assert (kept.exit_code, "Remove org/small and free" in kept.output) == (1, True)
    gone_now = invoke(gateway, "rm", "small", "--yes", "--json")
    assert json.loads(gone_now.output)["source"] == SMALL
    assert invoke(gateway, "show", "small").exit_code == 4
    failed = invoke(gateway, "pull", WIDE)
    assert (failed.exit_code, "won't fit" in failed.output) == (1, True)
    missing = invoke(gateway, "pull", "--json", "org/nothing")
    assert (missing.exit_code, '"not_found"' in missing.output) == (1, True)


def invoke(gateway: Gateway, *arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(main, [*arguments, "--url", gateway.url], input=stdin)


def test_a_model_that_is_configured_or_partly_there(
    gateway: Gateway, hub: Hub, cache: Path
) -> None:
    """What other tools leave half is never served; a table goes before what is found."""
    followed(gateway, start_pull(gateway, SMALL)["id"])
    snapshot = next((cache / "models--org--small" / "snapshots").iterdir())
    weights = snapshot / "model.safetensors"
    target = weights.readlink()
    weights.unlink()
    gateway.client.post("/admin/v1/reload").raise_for_status()
    assert gateway.client.get("/v1/models").json()["data"] == []
    assert "no weights" in library(gateway)[0]["problem"]
    weights.symlink_to(target)
    before = gateway.config_path.read_text()
    gateway.config_path.write_text(f'{before}[models.mine]\npath = "{SMALL}"\n')
    gateway.client.post("/admin/v1/reload").raise_for_status()
    assert [item["id"] for item in gateway.client.get("/v1/models").json()["data"]] == ["mine"]
    refused = gateway.client.delete(f"/admin/v1/library/{SMALL}")
    assert (refused.status_code, "as mine" in refused.text) == (400, True)
    gateway.config_path.write_text(before)
    gateway.client.post("/admin/v1/reload").raise_for_status()
    assert [item["id"] for item in gateway.client.get("/v1/models").json()["data"]] == ["small"]


def test_the_next_gateway_goes_on(hub: Hub, tmp_path: Path) -> None:
    state = str(tmp_path / "s")
    environment = {"HF_HUB_CACHE": str(tmp_path / "cache"), "HF_ENDPOINT": hub.url}
    first = Gateway("--state-dir", state, models=(), environment=environment)
    pull_slowly(first, hub)
    (process,) = pullers(first.pid)
    first.process.send_signal(signal.SIGKILL)
    eventually(lambda: gone(process.pid))
    first.process.wait()
    hub.rate = None
    first.stop()
    second = Gateway("--state-dir", state, models=(), environment=environment)
    (again,) = eventually(lambda: pulls(second))
    assert followed(second, again["id"])[-1]["state"] == "done"
    assert [(entry["source"], entry["part_bytes"]) for entry in library(second)] == [(SLOW, 0)]
    assert second.stop() == 0


def test_without_a_model_there_are_none(gateway: Gateway) -> None:
    refused = gateway.chat("x", "small")
    assert refused.status_code == 404
    message = "There is no model 'small', and no other: `bulkhead pull` gets one."
    assert refused.json()["error"]["message"] == message
    for command in ("chat", "bench", "models", "list"):
        said = bulkhead(command, url=gateway.url)
        assert (said.stdout, "`bulkhead run` finds one" in said.stderr) == ("", True)


def test_no_page_of_another_site_may_pull(gateway: Gateway) -> None:
    answer = httpx.post(
        f"{gateway.url}/admin/v1/pulls",
        json={"model": SMALL},
        headers={"origin": "https://evil.example"},
    )
    assert answer.status_code == 403
