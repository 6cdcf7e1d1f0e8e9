"""A model that is served keeps its name and its worker, whatever else comes onto the disks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.terminal import bulkhead
from tests.gateway.library.test_library import cached
from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow


def test_a_name_stays_with_its_model_across_reloads_and_restarts(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    cache, state = tmp_path / "cache", tmp_path / "state"

    def start() -> Gateway:
        environment = {"HF_HUB_CACHE": str(cache)}
        return start_gateway("--state-dir", str(state), models=(), environment=environment)

    def homes() -> dict[str, str]:
        listed = bulkhead("list", "--json", url=gateway.url)
        return {model["ids"][0]: model["source"] for model in json.loads(listed.stdout)}

    cached(cache, "mlx-community/Same")
    gateway = start()
    answer = gateway.say("Hello", "Same", max_tokens=4)
    pid = gateway.worker_pid("Same")
    cached(cache, "a-org/Same")
    expected = {"Same": "mlx-community/Same", "a-org/Same": "a-org/Same"}
    reloaded = gateway.client.post("/admin/v1/reload").raise_for_status().json()
    assert reloaded["added"] == ["a-org/Same"]
    assert homes() == expected
    assert gateway.say("Hello", "Same", max_tokens=4) == answer
    assert gateway.worker_pid("Same") == pid
    sentence = "a-org/Same is served as a-org/Same, as mlx-community/Same has the name Same."
    (event,) = gateway.events("reload")
    assert (event["names"], reloaded["names"]) == ([sentence], [sentence])
    assert sentence in gateway.log
    shown = bulkhead("show", "a-org/Same", url=gateway.url).stdout
    assert "its plain name was that of mlx-community/Same before" in shown
    assert gateway.stop() == 0
    gateway = start()
    assert homes() == expected
    (weights,) = (cache / "models--a-org--Same" / "snapshots").rglob("model.safetensors")
    weights.write_bytes(b"cut")
    gateway.client.post("/admin/v1/reload").raise_for_status()
    for name in ("a-org/Same", "a-org/Same:latest"):
        refused = gateway.chat("Hello", name)
        assert refused.status_code == 404
        assert f"{name!r} isn't served: " in refused.json()["error"]["message"]
    assert "model.safetensors" in bulkhead("show", "a-org/Same", url=gateway.url).stdout
