"""Servers of other projects as commands."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.commands import guarded, mlx_lm_server, real_server, serving
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.tiny_gguf import write_tiny_gguf

pytestmark = pytest.mark.slow


def _mlx_lm(folder: Path) -> str:
    pytest.importorskip("mlx_lm.server")
    return mlx_lm_server(folder)


def _llama(folder: Path) -> str:
    if shutil.which("llama-server") is None:
        pytest.skip("needs llama-server")
    model = folder / "model.gguf"
    write_tiny_gguf(model)
    return real_server("llama-server", "-m", str(model))


@pytest.fixture(scope="module", params=[_mlx_lm, _llama])
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    config = request.param(tmp_path_factory.mktemp("models"))
    with serving(config) as gateway:
        yield gateway


def _body(model: str, tokens: int) -> dict[str, object]:
    message = {"role": "user", "content": "What is a bulkhead?"}
    asked = {"model": model, "messages": [message], "max_tokens": tokens}
    return {**asked, "temperature": 0, "stream": True}


def _events(text: str) -> list[str]:
    """The events without what differs from one answer to the next."""
    own = ("id", "created", "timings")
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    told = [json.loads(line[6:]) if line[6:] != "[DONE]" else {"done": True} for line in lines]
    return [
        json.dumps({key: item for key, item in event.items() if key not in own}) for event in told
    ]


def test_a_stream_is_the_servers_own(gateway: Gateway) -> None:
    gateway.load("other")
    (port,) = (
        net_connection.laddr.port
        for process in guarded(gateway, "other")
        for net_connection in process.net_connections("tcp")
        if net_connection.status == psutil.CONN_LISTEN
    )
    through = gateway.client.post("/v1/chat/completions", json=_body("other", 50))
    own = httpx.post(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json=_body("default_model", 50),
        timeout=100,
    )
    assert len(_events(own.text)) > 40
    assert _events(through.text) == _events(own.text)
    assert gateway.model("other")["worker"]["footprint_bytes"] > 0


def test_a_stream_ends_with_an_error_if_the_server_dies(gateway: Gateway) -> None:
    gateway.load("other")
    (server,) = guarded(gateway, "other")
    body = _body("other", 10_000)
    with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if line.startswith("data: "))
        os.kill(server.pid, signal.SIGKILL)
        assert "event: error" in list(lines)
    # As clients do, which send a request again after a 502.
    eventually(lambda: gateway.chat("hi", "other", max_tokens=5).status_code == 200, START_S)
