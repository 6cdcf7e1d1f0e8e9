"""The scenario of docs/models.md, with its files and its commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.gateway import BULKHEAD, START_S, Gateway, eventually

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
SECTION = PAGE.partition("\n## Models that belong together\n")[2].partition("\n## ")[0]
FILES = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)
COMMANDS = [
    block.split("\n")[:-1] for block in re.findall(r"```sh groups\n(.*?)```", SECTION, re.DOTALL)
]


def _file(number: int, budget: int) -> str:
    """As on the page, with models that are here, and a budget that is as tight for them."""
    models = FILES[0].partition("[groups")[0]
    groups = FILES[number].partition("[groups")
    text = re.sub(r'path = ".*"', 'path = "demo"', models) + "".join(groups[1:])
    return re.sub(r'budget = ".*"', f"budget = {budget}", text)


@pytest.fixture(scope="module")
def budget() -> int:
    """Two and a half times what one of them takes."""
    floor: int = json.loads(_bulkhead("estimate demo --json", {}).stdout)["floor_bytes"]
    return floor * 5 // 2


@pytest.fixture(scope="module")
def gateway(budget: int) -> Iterator[Gateway]:
    running = Gateway(models=(), config=_file(0, budget))
    yield running
    assert running.stop() == 0, running.log


def _bulkhead(arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command in a place of its own."""
    return subprocess.run(
        [BULKHEAD, *arguments.split()],
        capture_output=True,
        text=True,
        timeout=120.0,
        env={**os.environ, "COLUMNS": "300", **environment},
    )


def _run(gateway: Gateway, number: int) -> dict[str, subprocess.CompletedProcess[str]]:
    environment = {
        "BULKHEAD_STATE_DIR": str(gateway.state_dir),
        "BULKHEAD_CONFIG": str(gateway.config_path),
    }
    return {
        command: _bulkhead(command.removeprefix("bulkhead "), environment)
        for command in COMMANDS[number]
    }


def _states(gateway: Gateway) -> dict[str, str]:
    return {model["id"]: model["state"] for model in gateway.status()["models"]}


def test_the_page(gateway: Gateway, budget: int) -> None:
    answers = _run(gateway, 0)
    assert [answer.returncode for answer in answers.values()] == [0] * 5, answers
    estimated = answers["bulkhead estimate coder"].stdout
    assert "Loading it also loads embedder" in estimated
    assert "It would evict chat." in estimated
    assert "Group coding (together)" in answers["bulkhead status"].stdout
    eventually(lambda: _states(gateway)["embedder"] == "ready", START_S)
    assert _states(gateway) == {"chat": "unloaded", "coder": "ready", "embedder": "ready"}
    assert {event["model"] for event in gateway.events("evict")} == {"chat"}
    admitted = {entry["model"]: entry for entry in gateway.events("admit")}
    assert admitted["coder"]["together"] == ["embedder"]

    gateway.config_path.write_text(_file(1, budget), "utf-8")
    reloaded, loaded = _run(gateway, 1).values()
    assert "groups.coding" in reloaded.stdout
    assert loaded.returncode == 1
    assert "'chat' needs" in loaded.stderr
    assert "are kept for groups.coding" in loaded.stderr
    assert _states(gateway)["coder"] == "ready"
    (group,) = gateway.status()["groups"]
    assert group["loaded"] == ["coder", "embedder"]
    assert group["kept_bytes"] == 0
    gateway.order("unload", "embedder").raise_for_status()
    (group,) = gateway.status()["groups"]
    assert group["kept_bytes"] > 0
    assert group["reason"] == "embedder is unloaded"
    assert 'bulkhead_group_models_loaded{group="coding"} 1.0' in gateway.client.get("/metrics").text

    gateway.config_path.write_text(_file(2, budget), "utf-8")
    assert [process.returncode for process in _run(gateway, 2).values()] == [0, 0]
    evicted = gateway.events("evict")[-1]
    assert (evicted["model"], evicted["for_model"]) == ("coder", "chat")
    assert evicted["group"] == "large"
    coder = gateway.model("coder")
    assert coder["state"] == "unloaded"
    assert coder["reason"].startswith("evicted: 'chat' has taken its place, as groups.large has")


def test_a_group_that_never_fits(gateway: Gateway, budget: int, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(_file(0, budget // 2), "utf-8")
    environment = {"BULKHEAD_STATE_DIR": str(tmp_path), "BULKHEAD_CONFIG": str(path)}
    answer = _bulkhead("config check", environment)
    assert answer.returncode == 1
    assert "groups.coding.models: its models need" in answer.stdout
    gateway.config_path.write_text(_file(0, budget), "utf-8")
    gateway.client.post("/admin/v1/reload").raise_for_status()
    gateway.config_path.write_text(_file(0, budget // 2), "utf-8")
    refused = gateway.client.post("/admin/v1/reload")
    assert refused.status_code == 400, "whatever of it has changed: here the budget alone"
    assert "its models need" in refused.json()["error"]["message"]
    assert gateway.status()["memory"]["budget_bytes"] == budget


def test_a_start_only_warns_of_a_group_that_never_fits(
    start_gateway: Callable[..., Gateway], budget: int
) -> None:
    running = start_gateway(models=(), config=_file(0, budget // 2))
    eventually(lambda: "groups.coding.models: its models need" in running.log)
    assert running.load("chat")["state"] == "ready", "the others are served"
