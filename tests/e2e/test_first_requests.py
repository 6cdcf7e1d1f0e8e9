"""What a request needs is there before the first one comes: in the gateway from its start on, in a
worker from its load on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.support.gateway import Gateway, eventually

# As Python writes down each import, once it is done, where the environment asks for that.
_IMPORT: Final = re.compile(r"import time: +\d+ \| +\d+ \| +(\S+)")
_MESSAGES: Final = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is Bulkhead?"},
]
_TOOL: Final = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_PROMPT: Final = {"prompt": "Once upon a time", "max_tokens": 4}
_CHAT: Final = {"messages": _MESSAGES, "max_tokens": 4}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    running = Gateway(environment={"PYTHONPROFILEIMPORTTIME": "1"})
    running.load()
    yield running
    assert running.stop() == 0


def _imported(gateway: Gateway) -> dict[str, list[str]]:
    log = gateway.client.get("/admin/v1/models/demo/logs?lines=10000").raise_for_status().text
    return {"gateway": _IMPORT.findall(gateway.log), "worker": _IMPORT.findall(log)}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {**_PROMPT, "temperature": 0}),
        ("/v1/completions", {**_PROMPT, "temperature": 0.8, "stream": True}),
        ("/v1/completions", {**_PROMPT, "top_p": 0.9, "frequency_penalty": 1, "logprobs": 2}),
        ("/v1/chat/completions", _CHAT),
        ("/v1/chat/completions", {**_CHAT, "stream": True}),
        ("/v1/chat/completions", {**_CHAT, "tools": [_TOOL]}),
        ("/v1/messages", {"messages": _MESSAGES[1:], "system": "Be brief.", "max_tokens": 4}),
        ("/v1/responses", {"input": "What is Bulkhead?", "max_output_tokens": 16}),
        ("/api/chat", {"messages": _MESSAGES, "options": {"num_predict": 4}}),
    ],
    ids=lambda text: text if isinstance(text, str) else "-".join(text),
)
def test_a_request_imports_nothing(gateway: Gateway, path: str, body: dict[str, Any]) -> None:
    before = _imported(gateway)
    # The load's imports are written down, so the next ones would be.
    assert "worker.runtime.warm" in before["worker"]
    assert "gateway.http.app" in before["gateway"]
    gateway.client.post(path, json={"model": "demo", **body}).raise_for_status()
    eventually(lambda: gateway.model()["active_requests"] == 0)
    assert _imported(gateway) == before
