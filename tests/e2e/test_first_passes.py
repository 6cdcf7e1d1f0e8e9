"""What a load finds out of a model by computing its first tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli.terminal import bulkhead
from tests.support import shapes
from tests.support.gateway import Gateway
from tests.support.mlx_lms_own import MlxLm

PROMPTS = ("Once", "A bulkhead is a wall in a ship that", "The sea " * 20)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model that answers otherwise in company, and one that computes nothing."""
    folders = tmp_path_factory.mktemp("models")
    shapes.shared_keys(folders / "shared")
    shutil.copytree(shapes.DEMO, folders / "odd")
    config = json.loads((folders / "odd" / "config.json").read_text())
    (folders / "odd" / "config.json").write_text(json.dumps({**config, "rope_theta": "10000"}))
    return folders


@pytest.fixture(scope="module")
def gateway(folders: Path) -> Iterator[Gateway]:
    running = Gateway(models=(str(folders / "shared"), str(folders / "odd")))
    yield running
    assert running.stop() == 0, running.log


def test_a_first_pass_that_raises_fails_the_load_once(gateway: Gateway) -> None:
    answer = gateway.order("load", "odd", wait=True)
    assert answer.status_code == 503
    reason = 'config.json: rope_theta is "10000", and must be a number. Correct the file, or pull'
    assert reason in answer.json()["error"]["message"]
    model = gateway.model("odd")
    assert (model["state"], model["restarts"]) == ("failed", 0)
    assert reason in model["reason"]
    told = bulkhead("config", "reload", url=gateway.url).stdout
    assert told == "odd stays failed: `bulkhead load odd` tries again\n"


def test_a_model_that_answers_otherwise_in_company_runs_alone(
    gateway: Gateway, folders: Path
) -> None:
    def complete(prompt: str) -> str:
        body = {"model": "shared", "prompt": prompt, "max_tokens": 24, "temperature": 0}
        answer = gateway.client.post("/v1/completions", json=body).raise_for_status().json()
        text: str = answer["choices"][0]["text"]
        return text

    gateway.load("shared")
    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        together = list(clients.map(complete, PROMPTS))
    alone = MlxLm(folders / "shared")
    assert together == [alone.complete(prompt, 24).text for prompt in PROMPTS]
    reason = "requests run one at a time: this model answers otherwise when several are computed"
    assert gateway.model("shared")["reason"].startswith(reason)
    shown = bulkhead("status", url=gateway.url).stdout
    assert "shared: requests run one at a time" in " ".join(shown.split())
