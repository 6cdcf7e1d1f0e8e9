"""The prompt cache as clients see it: whatever becomes of worker and gateway, the text is the same
and most of the prompt isn't computed again.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import Gateway, eventually

BLOCK = 64
PROMPT = [random.Random(5).randrange(10, 600) for _ in range(10 * BLOCK)]


def _ask(
    gateway: Gateway, prompt: list[int], headers: dict[str, str] | None = None, **fields: Any
) -> tuple[str, int]:
    """The text, and how many tokens of the prompt were cached."""
    body = {"model": "demo", "prompt": prompt, "max_tokens": 12, "temperature": 0, **fields}
    answered = gateway.client.post("/v1/completions", json=body, headers=headers)
    answer = answered.raise_for_status().json()
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len(prompt)
    return answer["choices"][0]["text"], usage["prompt_tokens_details"]["cached_tokens"]


def _stored(gateway: Gateway) -> int:
    """How many blocks are on disk, named by their keys; they are written beside the engine."""
    return sum(len(path.name) == 32 for path in (gateway.state_dir / "prompts").rglob("*"))


def test_computed_prompt_is_found_again(start_gateway: Callable[..., Gateway]) -> None:
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


def test_it_survives_the_gateway(start_gateway: Callable[..., Gateway], short_path: Path) -> None:
    folder = short_path / "s"
    killed = Gateway("--state-dir", str(folder))
    killed.state_dir = folder
    text, _ = _ask(killed, PROMPT)
    eventually(lambda: _stored(killed) >= 10)
    os.kill(killed.pid, signal.SIGKILL)
    killed.process.wait(60)
    assert _ask(start_gateway("--state-dir", str(folder)), PROMPT) == (text, 9 * BLOCK)


@pytest.mark.slow
def test_key_learns_nothing_of_another_keys_prompts(start_gateway: Callable[..., Gateway]) -> None:
    """Whatever the route, in memory and on disk, and whatever salt it guesses."""
    gateway = start_gateway(config="[gateway]\n")
    text, cached = _ask(gateway, PROMPT)
    assert (cached, _ask(gateway, PROMPT)[1]) == (0, 9 * BLOCK)
    eventually(lambda: _stored(gateway) >= 10)

    def key(name: str) -> dict[str, str]:
        made = gateway.client.post("/admin/v1/keys", json={"name": name}, headers=admin)
        return {"authorization": f"Bearer {made.raise_for_status().json()['key']}"}

    admin = {"x-api-key": (gateway.state_dir / "admin.key").read_text().strip()}
    alice, bob = key("alice"), key("bob")

    def ask(headers: dict[str, str], **fields: Any) -> tuple[str, int]:
        return _ask(gateway, PROMPT, headers, **fields)

    assert ask(alice) == (text, 0)
    assert ask(alice) == (text, 9 * BLOCK)
    (owner,) = (
        f"{key['name']}#{key['id']}"
        for key in json.loads((gateway.state_dir / "keys.json").read_text())["keys"]
        if key["name"] == "alice"
    )
    for headers in (bob, admin):
        assert ask(headers) == (text, 0)
        assert ask(headers) == (text, 9 * BLOCK)
        for salt in (owner, f"{owner}\0", "alice"):
            assert ask(headers, cache_salt=salt)[1] == 0
    assert ask(alice, cache_salt="mine")[1] == 0
    assert ask(bob, cache_salt="mine")[1] == 0
    assert ask(alice, cache_salt="mine")[1] == 9 * BLOCK
    models = [
        gateway.client.get("/v1/models/demo", headers=entry).json()["prompt_cache"]
        for entry in (alice, bob, admin)
    ]
    assert models[:2] == [None, None]
    assert models[2]["cached_tokens"] > 0

    # In another worker it comes from the disk.
    os.kill(
        gateway.client.get("/admin/v1/status", headers=admin).json()["models"][0]["worker"]["pid"],
        signal.SIGKILL,
    )
    assert ask(key("carol")) == (text, 0)
    assert ask(alice) == (text, 9 * BLOCK)

    gateway.config_path.write_text("[prompt_cache]\nshared = true\n")
    gateway.client.post("/admin/v1/reload", headers=admin).raise_for_status()
    assert ask(bob)[1] == 9 * BLOCK, "as it was kept before there were keys"
    shared = gateway.client.get("/v1/models/demo", headers=bob).json()["prompt_cache"]
    assert shared["cached_tokens"] > 0
