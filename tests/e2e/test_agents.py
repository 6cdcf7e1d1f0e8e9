"""Claude Code, Codex, opencode and Qwen Code, unmodified, with models that call two tools and are
done.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agents.running import AGENTS, NPM, ask, configuration
from tests.support.agents.script import CARGO, DONE, QUOTING, edited, edits, script
from tests.support.gateway import Gateway
from tests.support.scripted.model import TEMPLATES, scripted_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not NPM.exists(), reason="make test-all installs the agents, and found no npm"
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the agents work."""
    return tmp_path_factory.mktemp("hold")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Gateway]:
    models = tmp_path_factory.mktemp("models")
    made = {
        template: scripted_model(models / template, template, script(folder))
        for template in TEMPLATES
    }
    made |= {
        f"{name}-edits": scripted_model(models / f"{name}-edits", name, edits(folder))
        for name in TEMPLATES
    }
    running = Gateway(models=(), config=configuration(made))
    yield running
    assert running.stop() == 0, running.log


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("agent", AGENTS)
def test_agent(gateway: Gateway, folder: Path, tmp_path: Path, agent: str, template: str) -> None:
    said = ask(agent, tmp_path / "home", folder, gateway.url, template)
    assert DONE in said
    (copy,) = folder.glob("*-hold.txt")
    assert copy.read_text().strip() == CARGO
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    ("agent", "name"),
    [("claude", "claude"), ("codex-patching", "codex"), ("opencode", "opencode"), ("qwen", "qwen")],
)
def test_calls_are_quoted_in_a_file(
    gateway: Gateway, folder: Path, tmp_path: Path, agent: str, name: str, template: str
) -> None:
    file = folder / f"{name}-quoting.txt"
    file.write_text(QUOTING)
    said = ask(agent, tmp_path / "home", folder, gateway.url, f"{template}-edits")
    assert DONE in said
    assert file.read_text() == edited(name), said
