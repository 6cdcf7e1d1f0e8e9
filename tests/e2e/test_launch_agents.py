"""`bulkhead launch` with the agents as npm has them, each in a clean home."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.clients.agents import AGENTS
from tests.support.agents.running import (
    LAUNCHED,
    NPM,
    OWN_FILES,
    QUESTION,
    environment,
    run,
)
from tests.support.agents.script import CARGO, DONE, script
from tests.support.folders import short_folder
from tests.support.gateway import Gateway
from tests.support.ports import free_port
from tests.support.scripted.model import Step, scripted_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not NPM.exists(), reason="make test-all installs the agents, and found no npm"
    ),
]

LAUNCH = (sys.executable, "-m", "gateway", "launch")
ANSWER = "A bulkhead divides a ship."
PLAIN_QUESTION = "What is a bulkhead?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the agents work."""
    return tmp_path_factory.mktemp("hold")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> dict[str, Path]:
    """One that calls two tools, and one that only answers."""
    made = tmp_path_factory.mktemp("models")
    return {
        "tools": scripted_model(made / "tools", "plain", script(folder)),
        "plain": scripted_model(made / "plain", "plain", [Step("That is known.", ANSWER)]),
    }


@pytest.fixture(scope="module")
def configuration(models: dict[str, Path]) -> str:
    return "".join(f'[models.{name}]\npath = "{path}"\n' for name, path in models.items())


@pytest.fixture(scope="module")
def gateway(configuration: str) -> Iterator[Gateway]:
    running = Gateway(models=(), config=configuration)
    yield running
    assert running.stop() == 0, running.log


def launch_environment(home: Path, **more: str) -> dict[str, str]:
    """With secrets that no agent may pass on, and this copy of Bulkhead."""
    home.mkdir(parents=True, exist_ok=True)
    paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return environment(home, ANTHROPIC_API_KEY="of-another-service", **paths, **more)


@pytest.mark.parametrize("agent", LAUNCHED)
def test_a_plain_question(gateway: Gateway, folder: Path, tmp_path: Path, agent: str) -> None:
    command = [*LAUNCH, agent, "plain", "--url", gateway.url, "--", *LAUNCHED[agent]]
    done = run([*command, PLAIN_QUESTION], folder, launch_environment(tmp_path))
    assert ANSWER in done.stdout
    assert "plain: 65,536 tokens of context take " in done.stderr
    assert gateway.model("plain")["context_tokens"] == 65_536
    # It is told nothing by a file.
    assert not (tmp_path / OWN_FILES[agent]).exists()


@pytest.mark.parametrize("agent", LAUNCHED)
def test_two_tools(gateway: Gateway, folder: Path, tmp_path: Path, agent: str) -> None:
    command = [*LAUNCH, agent, "tools", "--url", gateway.url, "--", *LAUNCHED[agent]]
    done = run([*command, QUESTION], folder, launch_environment(tmp_path))
    assert DONE in done.stdout
    (copy,) = folder.glob("*-hold.txt")
    assert copy.read_text().strip() == CARGO
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize("agent", LAUNCHED)
def test_without_a_gateway(configuration: str, folder: Path, tmp_path: Path, agent: str) -> None:
    """One serves for this run, and is gone after it."""
    config = tmp_path / "config.toml"
    config.write_text(f"[gateway]\nport = {free_port()}\n[workers]\nspare = 0\n{configuration}")
    with short_folder() as state:
        told = launch_environment(
            tmp_path / "home", BULKHEAD_CONFIG=str(config), BULKHEAD_STATE_DIR=f"{state}/state"
        )
        command = [*LAUNCH, agent, "plain", "--", *LAUNCHED[agent], PLAIN_QUESTION]
        done = run(command, folder, told)
        assert ANSWER in done.stdout
        assert "No gateway ran: one serves at " in done.stderr
        assert not (Path(state) / "state" / "address.json").exists()


@pytest.mark.parametrize("agent", LAUNCHED)
def test_settings_in_its_own_file(
    gateway: Gateway, folder: Path, tmp_path: Path, agent: str
) -> None:
    """They work without the command, and go without a trace."""
    gateway.order("load", "plain", context_tokens=65_536).raise_for_status()
    told = launch_environment(tmp_path)
    written = run([*LAUNCH, agent, "plain", "--url", gateway.url, "--write"], folder, told)
    assert str(tmp_path / OWN_FILES[agent]) in written.stdout
    told.pop("ANTHROPIC_API_KEY")
    start = shlex.split(AGENTS[agent].file.start)
    done = run([*start, *LAUNCHED[agent], PLAIN_QUESTION], folder, told)
    assert ANSWER in done.stdout
    run([*LAUNCH, agent, "--undo"], folder, told)
    left = tmp_path / OWN_FILES[agent]
    # opencode adds its schema to the file.
    assert not left.exists() or set(json.loads(left.read_text())) == {"$schema"}
    assert not list(left.parent.glob("*bulkhead*"))
