"""Models of several processes: the same answers as of one, and one life and death for all."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlx_lm import load, stream_generate

from tests.cli.terminal import bulkhead
from tests.support.gateway import BULKHEAD, START_S, Gateway, eventually, gone
from tests.support.shapes import DEMO, splittable
from tests.support.streams import open_stream

pytestmark = pytest.mark.slow

# Longer than a block of the prompt cache.
PROMPT = "Tell me a story about a small model. " * 12
TOKENS = 12
# A short context has few kernels compiled: ranks spin while they wait for each other, and the
# fewer steps the better on few cores. So no more of them are loaded at a time than one test needs.
SETTINGS = "[workers]\nheartbeat_timeout_s = 5\nrestart_limit = 1000\n"
SPLITS = {
    "llama": ("llama", 2, "tensor"),
    "moe": ("qwen3_moe", 2, "tensor"),
    "layers": ("qwen3_moe", 2, "pipeline"),
    "windows": ("gpt_oss", 2, "tensor"),
    "four": ("llama", 4, "tensor"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("ranks")
    kinds = dict.fromkeys(kind for kind, _, _ in SPLITS.values())
    return {kind: splittable(base / kind, kind) for kind in kinds}


@pytest.fixture(scope="module")
def gateway(folders: dict[str, Path]) -> Iterator[Gateway]:
    tables = [_table("two", DEMO, 2, "tensor"), _table("stages", DEMO, 2, "pipeline")]
    tables += [_table(name, folders[kind], n, how) for name, (kind, n, how) in SPLITS.items()]
    running = Gateway(config=SETTINGS + "".join(tables))
    yield running
    # The last test kills who serves, which who stands in for it tells by its status.
    assert running.stop() in (0, 1, -signal.SIGKILL), running.log


def _table(name: str, folder: Path, local: int, split: str) -> str:
    return f"""
[models.{name}]
path = "{folder}"
local = {local}
split = "{split}"
context_tokens = 500
"""


@pytest.fixture
def alone(gateway: Gateway) -> Iterator[None]:
    yield
    for model in gateway.status()["models"]:
        if model["worker"] is not None and model["id"] not in ("two", "demo"):
            gateway.order("unload", model["id"]).raise_for_status()


def _pids(gateway: Gateway, model_id: str) -> list[int]:
    worker = gateway.model(model_id)["worker"]
    return [] if worker is None else [rank["pid"] for rank in worker["ranks"]]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "name",
    [
        "llama",
        pytest.param("layers"),
        pytest.param("windows"),
        pytest.param("moe"),
        pytest.param("four"),
    ],
)
def test_ranks_write_what_one_process_writes(
    name: str, gateway: Gateway, folders: dict[str, Path]
) -> None:
    kind, size, _ = SPLITS[name]
    model, tokenizer = load(str(folders[kind]))
    prompt_ids = tokenizer.encode(PROMPT)
    steps = stream_generate(model, tokenizer, prompt_ids, max_tokens=TOKENS)
    expected = "".join(step.text for step in steps)
    body = {"model": name, "prompt": prompt_ids, "max_tokens": TOKENS}
    for _ in range(2):
        # The second time most of the prompt comes from the prompt cache of each rank.
        answer = gateway.client.post("/v1/completions", json=body).raise_for_status().json()
        assert answer["choices"][0]["text"] == expected
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert len(_pids(gateway, name)) == size


def test_requests_of_all_kinds_side_by_side(gateway: Gateway) -> None:
    """What rank 0 alone does for them doesn't keep the others from following."""
    kinds: list[dict[str, Any]] = [
        {"max_tokens": 20, "ignore_eos": True},
        {"max_tokens": 24, "seed": 3, "temperature": 1.2, "top_p": 0.9, "ignore_eos": True},
        {"max_tokens": 12, "seed": 5, "temperature": 0.7, "frequency_penalty": 1.0},
        {"max_tokens": 20, "response_format": {"type": "json_object"}},
        {"max_tokens": 8, "logprobs": True, "top_logprobs": 3},
        {"max_tokens": 30, "stop": ["e"]},
    ]
    scored = {"prompt": "Tell me a story.", "max_tokens": 4, "echo": True, "logprobs": 2}
    outcomes, tokens = {}, {}
    for model_id in ("demo", "two"):
        streams = [
            open_stream(gateway, f"Tell me story {number}.", model_id, **kind)
            for number, kind in enumerate(kinds)
        ]
        # Its prompt's last layer is computed whole, which is nobody else's.
        answer = gateway.client.post("/v1/completions", json={"model": model_id, **scored})
        tokens[model_id] = answer.raise_for_status().json()["choices"][0]["logprobs"]["tokens"]
        outcomes[model_id] = [stream.join().outcome for stream in streams]
    assert outcomes["two"] == outcomes["demo"]
    assert tokens["two"] == tokens["demo"]


def test_the_status_has_each_rank(gateway: Gateway) -> None:
    gateway.load("two")
    eventually(lambda: gateway.model("two")["state"] == "ready", START_S)
    worker = eventually(lambda: _measured(gateway), START_S)
    assert [rank["rank"] for rank in worker["ranks"]] == [0, 1]
    assert worker["ranks"][0]["pid"] == worker["pid"]
    together = sum(rank["footprint_bytes"] for rank in worker["ranks"])
    assert worker["footprint_bytes"] > max(rank["footprint_bytes"] for rank in worker["ranks"])
    assert together > 50_000_000
    # Both have the embedding whole.
    assert worker["weight_bytes"] > (DEMO / "model.safetensors").stat().st_size
    shown = " ".join(bulkhead("status", url=gateway.url).stdout.split())
    for rank in worker["ranks"]:
        assert f"rank {rank['rank']} on this machine, pid {rank['pid']}, holds" in shown


def _measured(gateway: Gateway) -> Any:
    worker = gateway.model("two")["worker"]
    known = all(rank["footprint_bytes"] for rank in worker["ranks"])
    return worker if known and worker["footprint_bytes"] else None


@pytest.mark.parametrize("rank", [0, 1])
def test_killed_rank_ends_the_others(gateway: Gateway, rank: int) -> None:
    expected = open_stream(gateway, "Tell me a story.", "two", max_tokens=60, ignore_eos=True)
    whole = expected.join().outcome
    stream = open_stream(gateway, "Tell me a story.", "two", max_tokens=60, ignore_eos=True)
    eventually(lambda: stream.text, START_S)
    pids = _pids(gateway, "two")
    os.kill(pids[rank], signal.SIGKILL)
    eventually(lambda: all(map(gone, pids)))
    assert stream.join().outcome == whole
    exit_ = gateway.model("two")["last_exit"]
    assert exit_["signal"] == "SIGKILL"
    assert exit_["reason"] == f"rank {rank} on this machine was lost (signal SIGKILL)"


@pytest.mark.parametrize("rank", [0, 1])
def test_hanging_rank_ends_the_others(gateway: Gateway, rank: int) -> None:
    gateway.load("two")
    eventually(lambda: gateway.model("two")["state"] == "ready", START_S)
    pids = _pids(gateway, "two")
    os.kill(pids[rank], signal.SIGSTOP)
    eventually(lambda: all(map(gone, pids)))
    assert gateway.say("Hello", "two", max_tokens=5)
    assert f"rank {rank} on this machine" in gateway.model("two")["last_exit"]["reason"]


def test_they_stop_as_one(gateway: Gateway) -> None:
    gateway.load("two")
    eventually(lambda: gateway.model("two")["state"] == "ready", START_S)
    pids = _pids(gateway, "two")
    gateway.order("unload", "two").raise_for_status()
    assert all(map(gone, pids))
    exit_ = gateway.model("two")["last_exit"]
    assert (exit_["code"], exit_["reason"]) == (0, "stopped as asked")


def test_model_that_cannot_be_split_is_refused(gateway: Gateway) -> None:
    answer = gateway.chat("Hello", "stages")
    assert answer.status_code == 503
    reason = 'mlx-lm can\'t split a qwen3 by "pipeline", but it can by "tensor".'
    assert reason in answer.json()["error"]["message"]
    eventually(lambda: gateway.model("stages")["state"] == "failed", START_S)


def test_a_reload_under_load(gateway: Gateway) -> None:
    """What concerns others leaves them alone; from several ranks to one and back streams go on."""
    whole = open_stream(gateway, "Tell me a story.", "two", max_tokens=60, ignore_eos=True)
    expected = whole.join().outcome
    pids, config = _pids(gateway, "two"), gateway.config_path.read_text("utf-8")
    alone = _table("two", DEMO, 2, "tensor").replace("local = 2", "local = 1")
    for changed, ranks in (
        (config.replace("restart_limit = 1000", "restart_limit = 999"), 2),
        (config.replace(_table("two", DEMO, 2, "tensor"), alone), 1),
        (config, 2),
    ):
        stream = open_stream(gateway, "Tell me a story.", "two", max_tokens=60, ignore_eos=True)
        eventually(lambda stream=stream: stream.text, START_S)
        gateway.config_path.write_text(changed, "utf-8")
        gateway.client.post("/admin/v1/reload").raise_for_status()
        assert stream.join().outcome == expected
        if len(pids) == ranks:
            assert _pids(gateway, "two") == pids
        else:
            eventually(lambda pids=pids: all(map(gone, pids)))
            eventually(lambda: gateway.model("two")["state"] == "ready", START_S)
            # One process alone has no list of ranks.
            pids = _pids(gateway, "two") or [gateway.worker_pid("two")]
            assert len(pids) == ranks


def _upgrade(gateway: Gateway, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [BULKHEAD, "upgrade", "--url", gateway.url, *options],
        env={**os.environ, "BULKHEAD_STATE_DIR": str(gateway.state_dir)},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_upgrade_is_refused_and_nobody_notices(gateway: Gateway) -> None:
    whole = open_stream(gateway, "Tell me a story.", "two", max_tokens=60, ignore_eos=True)
    expected = whole.join().outcome
    pids, pid = _pids(gateway, "two"), gateway.status()["pid"]
    stream = open_stream(gateway, "Tell me a story.", "two", max_tokens=60, ignore_eos=True)
    eventually(lambda: stream.text, START_S)
    refused = _upgrade(gateway)
    assert "`bulkhead unload two --hold`" in " ".join(refused.communicate(timeout=120)[1].split())
    assert refused.returncode == 1
    assert stream.join().outcome == expected
    assert (_pids(gateway, "two"), gateway.status()["pid"]) == (pids, pid)
    assert gateway.say("Hello", "demo", max_tokens=5)


def test_ranks_that_load_during_an_upgrade(gateway: Gateway, tmp_path: Path) -> None:
    gateway.order("unload", "two").raise_for_status()
    python, pid = tmp_path / "python", gateway.status()["pid"]
    python.write_text(
        f'#!/bin/sh\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.1; done\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    refused = _upgrade(gateway, "--python", str(python))
    eventually(lambda: _runs(pid, python), START_S)
    assert gateway.say("Hello", "two", max_tokens=5)
    (tmp_path / "go").touch()
    assert "is loaded with several ranks" in " ".join(refused.communicate(timeout=180)[1].split())
    assert gateway.status()["pid"] == pid
    for model_id in ("two", "demo"):
        assert gateway.say("Hello", model_id, max_tokens=5)


def _runs(pid: int, program: Path) -> bool:
    children = psutil.Process(pid).children()
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(str(program) in child.cmdline() for child in children)
    return False


def test_upgrade_with_ranks_does_as_it_was_ordered(gateway: Gateway) -> None:
    """What the refusal says: the model is held over the upgrade, and loaded after it."""
    pid = gateway.status()["pid"]
    gateway.order("unload", "two", hold=True).raise_for_status()
    done = _upgrade(gateway)
    progress = done.communicate(timeout=180)[1].splitlines()
    assert done.returncode == 0
    assert all(line.startswith("upgrade: ") for line in progress), progress
    assert gateway.status()["pid"] != pid
    assert gateway.model("two")["state"] == "held"
    gateway.load("two")
    assert gateway.say("Hello", "two", max_tokens=5)
    assert len(_pids(gateway, "two")) == 2


def test_a_killed_gateway_leaves_none(gateway: Gateway) -> None:
    """The last one: there is no gateway after it."""
    gateway.load("two")
    eventually(lambda: gateway.model("two")["state"] == "ready", START_S)
    stream = open_stream(gateway, "Tell me a story.", "two", max_tokens=400, ignore_eos=True)
    eventually(lambda: stream.text, START_S)
    pids = _pids(gateway, "two")
    os.kill(gateway.status()["pid"], signal.SIGKILL)
    eventually(lambda: all(map(gone, pids)))
