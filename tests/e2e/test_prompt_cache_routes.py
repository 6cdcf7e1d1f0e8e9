"""What the gateway tells and asks of prompts that are kept: its own side, with scripted workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from protocol.prompt_store.payloads import KEY_BYTES, Entry
from protocol.prompt_store.store import PromptStore
from tests.cli.terminal import bulkhead
from tests.support.faults import interpreter
from tests.support.gateway import START_S, Gateway, eventually

# Its prompts have seven tokens, of which it finds so many as the salt says.
KEEPER = """
socket = connect()
socket.send(encode(hello()))
decode_from_gateway(socket.recv())
socket.send(encode(ready()))
kept = 4096
while True:
    if not socket.poll(500):
        socket.send(encode(heartbeat(prompt_cache_bytes=kept)))
        continue
    match decode_from_gateway(socket.recv()):
        case Generate(request_id=name, cache_salt=salt):
            socket.send(encode(Rendered(request_id=name, token_ids=b"\\0" * 28, last=True)))
            usage = Usage(7, 1, int(salt or 0))
            delta = Delta(name, (1,), (Text(salt),), "stop", usage)
            socket.send(encode(Output(step=1, deltas=(delta,))))
        case ClearPromptCache():
            socket.send(encode(PromptCacheCleared(reclaimed_bytes=kept)))
            kept = 0
        case Stop():
            sys.exit(0)
"""
MUTE = """
socket = connect()
socket.send(encode(hello()))
socket.recv()
socket.send(encode(ready()))
serve(socket)
"""
EAGER = """
socket = connect()
socket.send(encode(hello()))
socket.recv()
socket.send(encode(ready()))
socket.send(encode(PromptCacheCleared(reclaimed_bytes=1)))
wait()
"""
BLOCK = 5000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("keepers")
    codes = {"keeper": KEEPER, "mute": MUTE, "eager": EAGER}
    models = "".join(
        f'[models.{name}]\npath = "demo"\npython = "{interpreter(folder / name, code)}"\n'
        for name, code in codes.items()
    )
    config = f'[models.demo]\npath = "demo"\naliases = ["little"]\n{models}'
    running = Gateway(models=(), config=f"[workers]\nrestart_limit = 0\n{config}")
    yield running
    assert running.stop() == 0, running.log


def _store(gateway: Gateway) -> PromptStore:
    return PromptStore(gateway.state_dir / "prompts", 10**9, 10**9)


def _store_block(gateway: Gateway, owner: str, number: int) -> None:
    """Store a block, as a worker does."""
    store = _store(gateway)
    key, root = (bytes([item]) * KEY_BYTES for item in (number, 0))
    entry = Entry(key, root, b"\1\0\0\0", BLOCK, "test")
    assert store.write(entry, [b"x" * BLOCK], owner)
    store.close()


def _owners(gateway: Gateway) -> dict[str, int]:
    store = _store(gateway)
    try:
        return store.owners()
    finally:
        store.close()


def _clear(gateway: Gateway, model_id: str | None = None) -> httpx.Response:
    path = "" if model_id is None else f"/models/{model_id}"
    return gateway.client.post(f"/admin/v1{path}/prompt-cache/clear")


def _ask(gateway: Gateway, path: str = "chat/completions", **fields: Any) -> httpx.Response:
    body = {"model": "keeper", **fields}
    if path == "completions":
        body["prompt"] = "Hello"
    else:
        body["messages"] = [{"role": "user", "content": "Hello"}]
    return gateway.client.post(f"/v1/{path}", json=body)


def test_cached_tokens_are_reported(gateway: Gateway) -> None:
    """On both paths, streamed or not; never more than the prompt has."""
    for path in ("chat/completions", "completions"):
        for salt, cached in (("5", 5), ("9", 7), ("-1", 0), (None, 0)):
            usage = _ask(gateway, path, cache_salt=salt).raise_for_status().json()["usage"]
            assert usage == {
                "prompt_tokens": 7,
                "completion_tokens": 1,
                "total_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": cached},
                "completion_tokens_details": {
                    "reasoning_tokens": 0,
                    "accepted_prediction_tokens": 0,
                    "rejected_prediction_tokens": 0,
                },
            }
        streamed = _ask(
            gateway, path, cache_salt="5", stream=True, stream_options={"include_usage": True}
        )
        *_, last, done = [word for word in streamed.text.split("\n\n") if word]
        assert done == "data: [DONE]"
        assert json.loads(last[6:])["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}


def test_the_share_of_tokens_that_were_cached(gateway: Gateway) -> None:
    before = gateway.status()
    _ask(gateway, cache_salt="5").raise_for_status()
    _ask(gateway, cache_salt="1").raise_for_status()
    after = gateway.status()
    for part in (lambda status: status, _keeper):
        was, now = part(before)["prompt_cache"], part(after)["prompt_cache"]
        assert now["prompt_tokens"] - was["prompt_tokens"] == 14
        assert now["cached_tokens"] - was["cached_tokens"] == 6
        assert now["hit_rate"] == now["cached_tokens"] / now["prompt_tokens"]
    assert gateway.model("demo")["prompt_cache"]["hit_rate"] is None
    listed = gateway.client.get("/v1/models/keeper").json()["prompt_cache"]
    assert listed == _keeper(gateway.status())["prompt_cache"]
    line = bulkhead("status", url=gateway.url).stdout.splitlines()[2]
    rate, asked = after["prompt_cache"]["hit_rate"], after["prompt_cache"]["prompt_tokens"]
    assert line.endswith(f"{rate:.0%} of {asked} tokens were found there")


def _keeper(status: dict[str, Any]) -> dict[str, Any]:
    return next(model for model in status["models"] if model["id"] == "keeper")


@pytest.mark.parametrize("salt", ["x" * 257, 5, ["a"]])
def test_salts_are_texts_of_some_length(gateway: Gateway, salt: object) -> None:
    answer = _ask(gateway, cache_salt=salt)
    assert answer.status_code == 400
    assert "cache_salt" in answer.json()["error"]["message"]


def test_memory_and_disk_are_cleared(gateway: Gateway) -> None:
    """Of one model, loaded or not and by whatever name, or of all that ever were."""
    gateway.load("keeper")
    for number, owner in enumerate(("keeper", "demo", "gone"), 1):
        _store_block(gateway, owner, number)
    kept = _owners(gateway)
    assert kept.keys() == {"keeper", "demo", "gone"}
    held = eventually(lambda: _keeper(gateway.status())["worker"]["prompt_cache_bytes"])
    # A look at the disk may come between two blocks: the sum tells that all were there.
    disk_bytes = sum(kept.values())
    eventually(lambda: gateway.status()["prompt_cache"]["disk_bytes"] == disk_bytes)
    assert gateway.model("demo")["prompt_cache"]["disk_bytes"] == kept["demo"]
    assert _keeper(gateway.status())["prompt_cache"]["memory_bytes"] == held == 4096

    assert _clear(gateway, "little").json() == {"reclaimed_bytes": kept["demo"]}
    assert _owners(gateway).keys() == {"keeper", "gone"}
    answer = _clear(gateway)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"reclaimed_bytes": held + kept["keeper"] + kept["gone"]}
    assert _owners(gateway) == {}
    assert gateway.status()["prompt_cache"]["disk_bytes"] == 0
    assert _clear(gateway, "keeper").json() == {"reclaimed_bytes": 0}
    eventually(lambda: _keeper(gateway.status())["worker"]["prompt_cache_bytes"] == 0)
    assert _clear(gateway, "nobody").json()["error"]["code"] == "model_not_found"


def test_a_worker_that_keeps_its_prompts(gateway: Gateway) -> None:
    """What was cleared beside it is told, whether memory was or not."""
    gateway.load("mute")
    _store_block(gateway, "mute", 9)
    kept = _owners(gateway)["mute"]
    answer = _clear(gateway, "mute")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "model_unavailable")
    assert f"{kept} bytes were" in error["message"]
    assert "the worker of 'mute' didn't let go of its prompts within 5 s" in error["message"]
    assert "mute" not in _owners(gateway)
    gateway.order("kill", "mute", force=True)
    assert _clear(gateway, "mute").json() == {"reclaimed_bytes": 0}


def test_a_worker_that_clears_what_nobody_asked_it_to(gateway: Gateway) -> None:
    gateway.order("load", "eager")
    ended = eventually(lambda: gateway.model("eager")["last_exit"], START_S)
    assert "it cleared prompts unasked" in ended["reason"]
    gateway.order("kill", "eager", force=True)


def test_a_folder_that_is_no_folder(gateway: Gateway) -> None:
    """Nothing but the cache is lost: workers are started as always."""
    prompts = gateway.state_dir / "prompts"
    prompts.rename(gateway.state_dir / "moved")
    prompts.touch()
    try:
        answer = _clear(gateway)
        assert answer.status_code == 503
        assert "the prompts on disk can't be removed" in answer.json()["error"]["message"]
        assert gateway.order("restart", "keeper").json()["state"] == "ready"
        _ask(gateway).raise_for_status()
    finally:
        prompts.unlink()
