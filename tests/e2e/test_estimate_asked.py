"""Whom `bulkhead estimate` asks: the gateway that runs, of what it serves."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import bulkhead
from tests.gateway.library.test_library import demo
from tests.support.gateway import BULKHEAD, Gateway
from tests.support.shapes import DEMO

BUDGET = 2_000_000_000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """By a file that nobody but it is told of, with a model that is found and has no layers."""
    folders = tmp_path_factory.mktemp("models")
    types = demo(folders / "types", num_hidden_layers=None)
    running = Gateway(
        models=(),
        config=f"""
            [memory]
            budget = {BUDGET}
            [models]
            discover = ["{types.parent}"]
            [models.ranked]
            path = "{DEMO}"
            aliases = ["other"]
            context_tokens = 3000
        """,
    )
    yield running
    assert running.stop() == 0, running.log


@pytest.mark.parametrize("name", ["ranked", "other"])
def test_the_gateway_answers_for_its_models(gateway: Gateway, name: str) -> None:
    done = bulkhead("estimate", name, "--json", "--state-dir", str(gateway.state_dir))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["possible_bytes"], told["context_tokens"]) == (BUDGET, 3000)
    assert told["gateway"] == gateway.url
    assert told["floor_bytes"] == sum(told["parts"].values())
    assert "There is room for it" in told["forecast"]
    assert f"which has read {gateway.config_path}" in done.stderr


def test_it_is_the_same_as_by_the_same_file(gateway: Gateway) -> None:
    where = ("--state-dir", str(gateway.state_dir), "--context", "2500")
    asked = bulkhead("estimate", "ranked", *where)
    own = bulkhead("estimate", "ranked", *where, "--config", str(gateway.config_path))
    assert (asked.returncode, asked.stdout) == (0, own.stdout)
    assert "2,500 tokens of context" in own.stdout
    assert own.stderr == ""


def test_estimate_of_unserved_model_is_calculated(gateway: Gateway) -> None:
    where = ("--state-dir", str(gateway.state_dir))
    done = bulkhead("estimate", str(DEMO), "--json", *where)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["gateway"] is None
    assert f"not by the running gateway, which has read {gateway.config_path}" in done.stderr
    unknown = bulkhead("estimate", "rankedd", *where)
    assert unknown.returncode == 4
    assert "Did you mean 'ranked'?" in unknown.stderr


def test_folder_that_the_gateway_does_not_understand_is_named(gateway: Gateway) -> None:
    where = ("--state-dir", str(gateway.state_dir))
    unknown = bulkhead("estimate", "types", *where)
    assert unknown.returncode == 4
    assert f"the gateway at {gateway.url} serves it and doesn't understand" in unknown.stderr
    assert "Did you mean" not in unknown.stderr
    known = bulkhead("estimate", "types", *where, "--config", str(gateway.config_path))
    assert known.returncode == 1
    assert "config.json doesn't tell the number and sizes of its layers" in known.stderr


def test_a_configuration_with_mistakes_is_not_in_its_way(gateway: Gateway, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("nothing = 1\n")

    def estimate(model: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BULKHEAD, "estimate", model, "--state-dir", str(gateway.state_dir)],
            capture_output=True,
            text=True,
            timeout=120.0,
            env={**os.environ, "BULKHEAD_CONFIG": str(config)},
        )

    assert estimate("ranked").returncode == 0
    mistaken = estimate(str(DEMO))
    assert (mistaken.returncode, "nothing" in mistaken.stderr) == (1, True)
