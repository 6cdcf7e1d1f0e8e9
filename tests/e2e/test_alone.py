"""A model whose architecture can't compute several requests together answers them one at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cli.terminal import bulkhead
from tests.support import shapes
from tests.support.gateway import Gateway
from tests.support.mlx_lms_own import MlxLm

PROMPTS = ("Once", "A bulkhead is a wall in a ship that", "The sea " * 20)


def test_answers_are_those_of_each_request_alone(tmp_path: Path) -> None:
    folder = shapes.shared_keys(tmp_path / "shared")
    gateway = Gateway(models=(str(folder),))
    model_id = gateway.status()["models"][0]["id"]

    def complete(prompt: str) -> str:
        body = {"model": model_id, "prompt": prompt, "max_tokens": 24, "temperature": 0}
        answer = gateway.client.post("/v1/completions", json=body).raise_for_status().json()
        text: str = answer["choices"][0]["text"]
        return text

    gateway.load(model_id)
    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        together = list(clients.map(complete, PROMPTS))
    alone = MlxLm(folder)
    assert together == [alone.complete(prompt, 24).text for prompt in PROMPTS]
    reason = "requests run one at a time: this model answers otherwise when several are computed"
    assert gateway.model(model_id)["reason"].startswith(reason)
    assert "requests run one at a time" in " ".join(
        bulkhead("status", url=gateway.url).stdout.split()
    )
    assert gateway.stop() == 0, gateway.log
