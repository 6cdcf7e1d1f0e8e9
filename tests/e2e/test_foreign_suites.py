"""Suites that others wrote about the APIs that are spoken here. What one fails at is written down
with the reason, so a failure that is new is seen, and so is one that is gone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import Gateway

ENVIRONMENT = Path(sys.prefix)
COMPLY = ENVIRONMENT / "suites" / "bin" / "llm-comply"
PROBE = ENVIRONMENT / "agents" / "node_modules" / ".bin" / "llmprobe"

# Names for which llm-comply leaves nothing out: it takes them for models that can think.
THINKS = {"open-responses": "o1-demo", "openai-chat": "o1-demo", "anthropic": "claude-4-demo"}
NO_EYES = "the demo model can't look at pictures: a model that can is asked, too"
COMPLY_FAILS: dict[str, dict[str, str]] = {
    "open-responses": {"image-input": NO_EYES},
    "openai-chat": {"chat-image-input": NO_EYES},
    "anthropic": {},
}
PROBE_FAILS = {
    "messages-assistant-prefill": "an answer can't begin with given words here: it is refused",
    "responses-previous-response-id": "the demo model doesn't repeat a name that it was told",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")
    from tests.support.picture_model import picture_model

    eyes = picture_model(tmp_path_factory.mktemp("models") / "eyes")
    running = Gateway(
        models=(),
        config=f"""
[models.demo]
path = "demo"
aliases = {json.dumps(sorted(set(THINKS.values())))}
[models.eyes]
path = "{eyes}"
pictures = true
""",
    )
    yield running
    assert running.stop() == 0, running.log


def _output(*command: str) -> Any:
    """A suite says by its status whether anything failed, which isn't asked here."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=350, check=False)
    assert done.stdout.startswith("{"), done.stderr[-4000:]
    return json.loads(done.stdout)


def _comply(gateway: Gateway, api: str, model: str, *options: str) -> dict[str, Any]:
    """What each of its tests came to, by its name."""
    command = [str(COMPLY), "--json", "--format", api, "--model", model, "--api-key", "none"]
    command += ["--base-url", f"{gateway.url}/v1", *options]
    if api == "anthropic":
        command += ["--auth-header", "x-api-key", "--no-bearer"]
    return {result["id"]: result for result in _output(*command)["results"]}


@pytest.mark.skipif(not COMPLY.exists(), reason="make test-all installs llm-comply")
@pytest.mark.parametrize("api", COMPLY_FAILS)
def test_llm_comply(gateway: Gateway, api: str) -> None:
    found = _comply(gateway, api, THINKS[api])
    failed = {name: item for name, item in found.items() if item["status"] != "passed"}
    assert failed.keys() == COMPLY_FAILS[api].keys(), failed
    if failed:
        looking = _comply(gateway, api, "eyes", "--filter", ",".join(failed))
        assert [item["status"] for item in looking.values()] == ["passed"], looking


@pytest.mark.skipif(not PROBE.exists(), reason="make test-all installs llmprobe, and found no npm")
def test_llmprobe(gateway: Gateway, tmp_path: Path) -> None:
    options = ("--model", "demo", "--json", "--no-bench", "--no-save")
    found = _output(str(PROBE), f"{gateway.url}/v1", *options)["conformance"]["results"]
    failed = {item["id"]: item["failures"] for item in found if item["outcome"] == "fail"}
    assert failed.keys() == PROBE_FAILS.keys(), failed
