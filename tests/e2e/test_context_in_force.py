"""The context in force follows what memory there can be, in a worker that goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import bulkhead
from tests.support import shapes
from tests.support.gateway import START_S, Gateway, eventually

pytestmark = pytest.mark.slow


def _config(folder: Path, budget_mb: int, *, pinned: bool) -> str:
    return f"""
        [memory]
        budget = "{budget_mb}MB"
        [models.long]
        path = "{folder}"
        context_tokens = 500000
        [models.other]
        path = "demo"
        pinned = {json.dumps(pinned)}
        """


def _reload(running: Gateway, config: str) -> Any:
    running.config_path.write_text(config, "utf-8")
    return running.client.post("/admin/v1/reload")


def test_it_follows_pins_and_budgets(start_gateway: Callable[..., Gateway], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(shapes.DEMO, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 500_000}))
    running = start_gateway(models=(), config=_config(folder, 300, pinned=False))
    alone = running.load("long")
    running.load("other")
    _reload(running, _config(folder, 300, pinned=True)).raise_for_status()

    eventually(lambda: running.model("long")["context_tokens"] < alone["context_tokens"], START_S)
    tokens = running.model("long")["context_tokens"]
    (told,) = running.events("context")
    assert (told["model"], told["context_tokens"]) == ("long", tokens)
    where = ("--config", str(running.config_path), "--state-dir", str(running.state_dir))
    found = json.loads(bulkhead("doctor", "--json", *where).stdout)["findings"]
    (judged,) = [item["evidence"] for item in found if item["subject"] == "long"]
    estimated = json.loads(bulkhead("estimate", "long", "--json", *where).stdout)
    assert estimated["possible_bytes"] < 250_000_000
    assert judged.endswith(f"it would get {estimated['granted_context_tokens']:,}.")

    body = {"model": "long", "prompt": [5] * 200_000, "max_tokens": 1}
    refused = running.client.post("/v1/completions", json=body)
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert f"context length is {tokens} tokens" in message
    assert "of the memory budget of 300 MB can be had for it at present, as other keeps" in message

    below = _reload(running, _config(folder, 50, pinned=True))
    assert below.status_code == 400
    mistake = below.json()["error"]["message"]
    assert "memory.budget: 50.0 MB is less than other keeps, which is pinned" in mistake
    assert running.status()["memory"]["budget_bytes"] == 300_000_000

    _reload(running, _config(folder, 900, pinned=True)).raise_for_status()
    eventually(lambda: running.model("long")["context_tokens"] > alone["context_tokens"], START_S)
    assert running.worker_pid("long") == alone["worker"]["pid"]
