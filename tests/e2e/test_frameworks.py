"""Frameworks for agents, unmodified, with text, streams, tools, schemas and embeddings as far as
each has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.clients.running import CLIENTS, ENVIRONMENT, NODE, run
from tests.support.gateway import Gateway
from tests.support.scripted.model import Step, scripted_model

FRAMEWORKS = ENVIRONMENT / "frameworks"
PYTHON = FRAMEWORKS / "bin" / "python"
NPM = FRAMEWORKS / "node_modules"
SAID = "The sun is out there."
_ASKED = Step(
    "I look.", "I look at it.", "get_weather", {"city": "Tromso"}, '"name": "get_weather"'
)
_GREETING = Step("Nothing can be called.", "Hello.")
STEPS = [_GREETING, _ASKED, Step("That was all.", SAID, mark="Tromso")]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    weather = scripted_model(tmp_path_factory.mktemp("models") / "weather", "plain", STEPS)
    running = Gateway(config=f'[models.weather]\npath = "{weather}"\n')
    yield running
    assert running.stop() == 0, running.log


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="make test-more installs the frameworks")
@pytest.mark.parametrize(
    "name", ["pydantic_ai", "instructor", "openai_agents", "llama_index", "dspy", "smolagents"]
)
def test_python(gateway: Gateway, name: str) -> None:
    _check(run(PYTHON, CLIENTS / "frameworks.py", name, gateway.url))


@pytest.mark.slow
@pytest.mark.skipif(
    NODE is None or not NPM.exists(), reason="there is no node, or make test-more found no npm"
)
@pytest.mark.parametrize("name", ["ai", "langchain"])
def test_npm(gateway: Gateway, name: str) -> None:
    _check(run(str(NODE), CLIENTS / "frameworks.cjs", name, gateway.url, npm=NPM))


def _check(found: dict[str, Any]) -> None:
    """All ways of a framework say the same."""
    for text in found.get("whole", ()):
        assert text.startswith("You can ask me"), found
    assert found.get("streamed", found.get("whole")) == found.get("whole"), found
    assert set(found.get("tooled", ())) <= {SAID}, found
    assert set(found.get("called", ())) <= {"get_weather"}, found
    assert set(found["schema"]) <= {"Rome", "Oslo"}, found
    assert found.get("vectors", 2) == 2, found
