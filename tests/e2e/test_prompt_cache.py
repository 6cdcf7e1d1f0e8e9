"""The prompt cache as clients see it: whatever becomes of worker and gateway, the text is the same
and most of the prompt isn't computed again.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.gateway import Gateway, eventually

BLOCK = 64
PROMPT = [random.Random(5).randrange(10, 600) for _ in range(10 * BLOCK)]


def _ask(gateway: Gateway, prompt: list[int], **fields: Any) -> tuple[str, int]:
    """The text, and how many tokens of the prompt were cached."""
    body = {"model": "demo", "prompt": prompt, "max_tokens": 12, "temperature": 0, **fields}
    answer = gateway.client.post("/v1/completions", json=body).raise_for_status().json()
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len(prompt)
    return answer["choices"][0]["text"], usage["prompt_tokens_details"]["cached_tokens"]


def _stored(gateway: Gateway) -> int:
    """How many blocks are on disk, named by their keys; they are written beside the engine."""
    return sum(len(each.name) == 32 for each in (gateway.state_dir / "prompts").rglob("*"))


def test_what_was_computed_is_found_again(start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway()
    text, cached = _ask(gateway, PROMPT)
    assert cached == 0
    # The last token is always computed.
    assert _ask(gateway, PROMPT) == (text, 9 * BLOCK)
    assert _ask(gateway, [*PROMPT, 11, 12])[1] == 10 * BLOCK
    assert _ask(gateway, [*PROMPT[: 4 * BLOCK], 11, 12])[1] == 4 * BLOCK
    assert _ask(gateway, PROMPT, cache_salt="mine") == (text, 0)
    eventually(lambda: _stored(gateway) >= 20)

    gateway.order("unload").raise_for_status()
    assert _ask(gateway, PROMPT) == (text, 9 * BLOCK)
    os.kill(gateway.worker_pid(), signal.SIGKILL)
    assert _ask(gateway, PROMPT) == (text, 9 * BLOCK)

    freed = gateway.client.post("/admin/v1/models/demo/prompt-cache/clear").raise_for_status()
    assert freed.json()["reclaimed_bytes"] > 10 * BLOCK * 1024
    assert _stored(gateway) == 0
    assert _ask(gateway, PROMPT) == (text, 0)


def test_it_survives_the_gateway(start_gateway: Callable[..., Gateway], tmp_path: Path) -> None:
    folder = tmp_path / "s"
    killed = Gateway("--state-dir", str(folder))
    killed.state_dir = folder
    text, _ = _ask(killed, PROMPT)
    eventually(lambda: _stored(killed) >= 10)
    os.kill(killed.pid, signal.SIGKILL)
    killed.process.wait(60)
    assert _ask(start_gateway("--state-dir", str(folder)), PROMPT) == (text, 9 * BLOCK)
