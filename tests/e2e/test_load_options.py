"""What a worker is message at its load, and what a reload of it touches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from gateway.config.model_folders import DEMO_FOLDER
from tests.support.faults import interpreter, sitecustomize
from tests.support.gateway import START_S, Gateway, eventually

# Leaves what it was message beside it.
TOLD = """
socket = connect()
socket.send(encode(hello()))
import msgspec, pathlib
message = pathlib.Path(__file__).with_name("load.json")
message.with_suffix(".new").write_bytes(msgspec.json.encode(msgspec.msgpack.decode(socket.recv())))
message.with_suffix(".new").replace(message)
socket.send(encode(ready()))
serve(socket)
"""
# In the gateway: what a model needs is found out late, as on a disk that sleeps.
LATE = """
import os, threading, time
run = threading.Thread.run
def late(thread):
    if thread.name.startswith("estimate ") and os.path.exists({flag!r}):
        time.sleep(1)
    run(thread)
threading.Thread.run = late
"""
BOUNDS = '[prompt_cache]\ndisk = "{disk}"\ndisk_writes_per_hour = "1GB"\n'
WORKERS = '[workers]\nprefill_stall_s = "50ms"\nspare = 0\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("message")
    for name in ("plain", "full"):
        interpreter(folder / name, TOLD)
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    mx.save_safetensors(str(adapter / "adapters.safetensors"), {"lora_a": mx.zeros((64, 4000))})
    return folder


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Gateway]:
    site = sitecustomize(folder / "site", LATE.format(flag=str(folder / "late")))
    running = Gateway(models=(), config=_config(folder), environment=site)
    yield running
    assert running.stop() == 0, running.log


def _config(folder: Path, *, disk: str = "2GB", tokens: int = 5) -> str:
    options = f'adapter = "{folder}/adapter"\ndraft_model = "demo"\ndraft_tokens = {tokens}\n'
    models = [
        f'[models.{name}]\npath = "demo"\nkv_bits = 8\npython = "{folder}/{name}/python"\n{more}'
        for name, more in (("plain", "draft_tokens = 7\nguesses = false\n"), ("full", options))
    ]
    return "".join((BOUNDS.format(disk=disk), WORKERS, *models))


def _load_message(folder: Path, name: str) -> dict[str, Any]:
    message: dict[str, Any] = json.loads((folder / name / "load.json").read_bytes())
    return message


def test_load_options_reach_the_worker_and_its_estimate(gateway: Gateway, folder: Path) -> None:
    plain, full = gateway.load("plain"), gateway.load("full")
    message = _load_message(folder, "plain")
    assert (message["model_id"], message["stall_s"]) == ("plain", 0.05)
    assert message["prompt_cache"] == {
        "folder": str(gateway.state_dir / "prompts"),
        "most_bytes": 2 * 10**9,
        "most_bytes_per_hour": 10**9,
    }
    options = ("kv_bits", "adapter_path", "draft_path", "draft_tokens", "guesses")
    assert [message[option] for option in options] == [8, None, None, 7, False]
    message = _load_message(folder, "full")
    adapter = str((folder / "adapter").resolve())
    assert [message[name] for name in options] == [8, adapter, str(DEMO_FOLDER), 5, True]
    more = full["floor_bytes"] - plain["floor_bytes"]
    assert more > 64 * 4000 * 4 + (DEMO_FOLDER / "model.safetensors").stat().st_size - 100_000


def test_a_reload_touches_that_model_alone(gateway: Gateway, folder: Path) -> None:
    pids = {name: gateway.load(name)["worker"]["pid"] for name in ("plain", "full")}
    gateway.config_path.write_text(_config(folder, disk="3GB", tokens=6), "utf-8")
    (folder / "late").touch()
    answer = gateway.client.post("/admin/v1/reload").raise_for_status().json()
    assert answer["changed"] == {"full": ["draft_tokens"]}
    assert answer["needs_restart"] == ["prompt_cache.disk"]
    # It comes again although nobody waits for it, however long that takes.
    eventually(lambda: _load_message(folder, "full")["draft_tokens"] == 6, START_S)
    eventually(lambda: gateway.model("full")["state"] == "ready", START_S)
    assert gateway.worker_pid("plain") == pids["plain"]
    assert gateway.worker_pid("full") != pids["full"]
    most_bytes = _load_message(folder, "full")["prompt_cache"]["most_bytes"]
    assert most_bytes == 2 * 10**9, "all workers share the folder"


def test_an_adapter_that_has_gone_is_said_by_its_key(gateway: Gateway, folder: Path) -> None:
    weights = folder / "adapter" / "adapters.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    answer = gateway.client.post("/admin/v1/reload")
    weights.write_bytes(content)
    assert answer.status_code == 400
    assert '"full".adapter: ' in answer.json()["error"]["message"]
