"""The operator's verbs over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest

from tests.support import shapes
from tests.support.faults import after_import, held_steps, sitecustomize
from tests.support.gateway import START_S, Gateway, chat_body, eventually
from tests.support.streams import open_stream

STORY = "Tell me a story."
LONG = {"max_tokens": 200, "ignore_eos": True}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    running = Gateway(config="[gateway]\ndrain_s = 60.0\n")
    yield running
    assert running.stop() == 0, running.log


def test_status_has_every_field(gateway: Gateway) -> None:
    gateway.load()
    eventually(lambda: gateway.model()["worker"]["footprint_bytes"])
    status = gateway.status()
    assert set(status) == {
        "version",
        "pid",
        "instance",
        "uptime_s",
        "state",
        "reason",
        "config",
        "memory",
        "prompt_cache",
        "models",
        "groups",
        "hosts",
        "upstreams",
    }
    assert status["hosts"] == status["upstreams"] == []
    assert status["config"]["file"] == str(gateway.config_path)
    assert len(status["config"]["digest"]) == 64
    assert status["state"] == "serving"
    assert status["pid"] == gateway.pid
    assert set(status["memory"]) == {
        "total_bytes",
        "budget_bytes",
        "granted_bytes",
        "footprint_bytes",
        "spare_bytes",
        "gateway_bytes",
        "other_bytes",
        "available_bytes",
        "stranded_bytes",
        "pressure",
        "card_total_bytes",
        "card_available_bytes",
    }
    (model,) = status["models"]
    assert set(model) == {
        "id",
        "state",
        "reason",
        "failure",
        "pinned",
        "queue_depth",
        "oldest_waiting_s",
        "active_requests",
        "oldest_active_s",
        "estimate_bytes",
        "floor_bytes",
        "lent_bytes",
        "returning_bytes",
        "wanted_bytes",
        "context_tokens",
        "last_used_at",
        "prompt_cache",
        "worker",
        "restarts",
        "last_exit",
        "repeated_deaths",
        "guesses",
        "sharers",
        "command",
        "cache_proof",
        "invalid_outputs",
        "plain",
        "looped_answers",
        "repetition_stops",
        "check",
    }
    assert set(model["worker"]) == {
        "pid",
        "incarnation",
        "started_at",
        "footprint_bytes",
        "peak_footprint_bytes",
        "granted_bytes",
        "weight_bytes",
        "cache_bytes",
        "buffer_bytes",
        "last_step_age_s",
        "tokens_per_s",
        "prompt_cache_bytes",
        "ranks",
    }
    kept = {"memory_bytes", "disk_bytes", "prompt_tokens", "cached_tokens", "hit_rate"}
    assert set(status["prompt_cache"]) == set(model["prompt_cache"]) == kept
    assert model["worker"]["footprint_bytes"] > 10_000_000
    assert (model["oldest_waiting_s"], model["oldest_active_s"]) == (None, None)


@pytest.mark.slow
def test_the_oldest_request_has_its_age_from_its_arrival(gateway: Gateway) -> None:
    gateway.order("unload").raise_for_status()
    stream = open_stream(gateway, STORY, **LONG)
    waited_s = eventually(lambda: gateway.model()["oldest_waiting_s"])
    active_s = eventually(lambda: gateway.model()["oldest_active_s"], START_S)
    assert 0 < waited_s < active_s
    assert gateway.model()["oldest_waiting_s"] is None
    stream.join()
    assert gateway.model()["oldest_active_s"] is None


def test_a_request_is_listed_while_it_runs(gateway: Gateway) -> None:
    headers = {"x-request-id": "listed"}
    body = chat_body(STORY, stream=True, max_tokens=3000, ignore_eos=True)
    # It runs until its client leaves.
    with gateway.client.stream("POST", "/v1/chat/completions", json=body, headers=headers):
        listed = eventually(
            lambda: [entry for entry in _requests(gateway) if entry["delivered_tokens"] > 0],
            START_S,
        )
        (request,) = listed
        assert request.pop("age_s") > 0
        assert request.pop("prompt_tokens") > 0
        assert request.pop("delivered_tokens") > 0
        named = {"id": "listed", "model": "demo", "key": None}
        assert request == named | {"state": "running", "place": None}
        with gateway.client.stream("GET", "/admin/v1/live?recent=1") as live:
            lines = live.iter_lines()
            kinds = {}
            while "snapshot" not in kinds:
                kind = next(line for line in lines if line.startswith("event: "))
                kinds[kind[7:]] = json.loads(next(lines)[6:])
            assert len(kinds) == 2, "an event, and the state after it"
            assert kinds["snapshot"]["requests"][0]["id"] == "listed"
            assert kinds["snapshot"]["status"]["pid"] == gateway.pid
    assert eventually(lambda: not _requests(gateway))


def _requests(gateway: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gateway.client.get("/admin/v1/requests").json()["requests"]
    return found


def test_load_twice_is_one_load(gateway: Gateway) -> None:
    first = gateway.load()
    assert gateway.load()["worker"]["pid"] == first["worker"]["pid"]


def test_unload_ends_the_process(gateway: Gateway) -> None:
    pid = gateway.load()["worker"]["pid"]
    status = gateway.order("unload").raise_for_status().json()
    assert status["state"] == "unloaded"
    assert status["worker"] is None
    assert status["last_exit"]["code"] == 0
    assert not psutil.pid_exists(pid)
    assert gateway.order("unload").json()["state"] == "unloaded"


@pytest.mark.slow
def test_unload_lets_running_answers_finish(gateway: Gateway) -> None:
    whole = gateway.say(STORY, max_tokens=200)
    stream = open_stream(gateway, STORY, max_tokens=200)
    eventually(lambda: stream.text, START_S)
    status = gateway.order("unload").raise_for_status().json()
    stream.join()
    assert stream.done
    assert stream.text == whole
    assert status["state"] == "unloaded"


@pytest.mark.slow
def test_forced_unload_does_not_wait(gateway: Gateway) -> None:
    gateway.load()
    stream = open_stream(gateway, STORY, **LONG)
    eventually(lambda: stream.text, START_S)
    gateway.order("unload", force=True).raise_for_status()
    assert not stream.done
    # Who was cut off is still owed the rest, so the model comes back.
    assert stream.join().done


@pytest.mark.slow
@pytest.mark.parametrize("force", [False, True])
def test_an_unload_that_holds_ends_what_is_cut_off(gateway: Gateway, *, force: bool) -> None:
    gateway.load()
    stream = open_stream(gateway, STORY, **LONG)
    eventually(lambda: stream.text, START_S)
    held = gateway.order("unload", hold=True, force=force).raise_for_status().json()
    assert held["state"] == "held"
    stream.join()
    assert stream.done is not force
    assert (stream.error or {}).get("code") == ("model_unavailable" if force else None)
    gateway.load()


def test_a_held_model_refuses_until_it_is_loaded(gateway: Gateway) -> None:
    gateway.load()
    assert gateway.order("unload", hold=True).json()["state"] == "held"
    refused = gateway.chat("Hello")
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "model_unavailable"
    assert "held" in refused.json()["error"]["message"]
    assert gateway.load()["state"] == "ready"
    assert gateway.chat("Hello").status_code == 200


def test_restart_gives_a_new_process(gateway: Gateway) -> None:
    before = gateway.load()["worker"]
    after = gateway.order("restart").raise_for_status().json()
    assert after["state"] == "ready"
    assert after["worker"]["pid"] != before["pid"]
    assert after["worker"]["incarnation"] > before["incarnation"]
    assert not psutil.pid_exists(before["pid"])


@pytest.mark.slow
@pytest.mark.parametrize("force", [False, True])
def test_answers_survive_a_kill(gateway: Gateway, *, force: bool) -> None:
    pid = gateway.load()["worker"]["pid"]
    whole = gateway.say(STORY, max_tokens=150, ignore_eos=True)
    stream = open_stream(gateway, STORY, max_tokens=150, ignore_eos=True)
    eventually(lambda: stream.text, START_S)
    status = gateway.order("kill", force=force).raise_for_status().json()
    assert stream.join().text == whole
    assert not psutil.pid_exists(pid)
    assert status["last_exit"]["signal"] == ("SIGKILL" if force else None)
    killed = gateway.order("kill", force=force).raise_for_status().json()
    assert killed["state"] == "unloaded", "nobody waits for it"


@pytest.mark.slow
def test_verbs_in_the_middle_of_a_start(gateway: Gateway) -> None:
    for verb in ("unload", "kill", "restart", "unload"):
        gateway.order("load", wait=False)
        gateway.order(verb).raise_for_status()
    status = gateway.order("kill", force=True).json()
    assert status["state"] == "unloaded"
    assert gateway.load()["state"] == "ready"


@pytest.mark.slow
def test_a_request_during_the_stop_loads_the_model_again(gateway: Gateway) -> None:
    before = gateway.load()["worker"]["incarnation"]
    gateway.order("unload", wait=False)
    assert gateway.say("Hello")
    assert gateway.model()["worker"]["incarnation"] > before


def test_logs(gateway: Gateway) -> None:
    gateway.load()
    os.kill(gateway.worker_pid(), signal.SIGABRT)
    exit_ = eventually(
        lambda: gateway.model()["worker"] is None and gateway.model()["last_exit"], START_S
    )
    assert exit_["signal"] == "SIGABRT"
    assert any("Fatal Python error" in line for line in exit_["log_tail"])
    text = gateway.client.get("/admin/v1/models/demo/logs?lines=5").text
    assert len(text.splitlines()) == 5
    everything = gateway.client.get("/admin/v1/models/demo/logs").text
    assert "Fatal Python error" in everything
    written = (gateway.state_dir / "logs" / "demo.log").read_text()
    assert "Fatal Python error" in written


def test_the_log_says_how_each_request_ended(gateway: Gateway) -> None:
    told = gateway.chat("Hello", max_tokens=0)
    assert told.status_code == 400
    assert gateway.chat("Hello", max_tokens=2).status_code == 200

    def of_chats() -> list[dict[str, Any]]:
        text = gateway.client.get("/admin/v1/logs").text
        lines = [json.loads(line) for line in text.splitlines()]
        return [line for line in lines if line.get("path") == "/v1/chat/completions"]

    eventually(lambda: of_chats()[-1]["status"] == 200)
    bad, good = of_chats()[-2:]
    sentence = told.json()["error"]["message"]
    assert bad["error"] == sentence
    assert bad["message"].endswith(f" s: {sentence}")
    assert "error" not in good
    assert re.search(r": 200, demo, \d+ \+ 2 tokens, \d\.\d{3} s$", good["message"])


def test_following_logs(gateway: Gateway) -> None:
    gateway.load()
    with gateway.client.stream("GET", "/admin/v1/models/demo/logs?follow=1&lines=0") as answer:
        os.kill(gateway.worker_pid(), signal.SIGABRT)
        lines = answer.iter_lines()
        assert any("Fatal Python error" in line for line in lines if line.startswith("data: "))


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "localhost.evil.example:8642"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_foreign_pages_are_refused(gateway: Gateway, headers: dict[str, str]) -> None:
    answer = gateway.client.get("/admin/v1/status", headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "permission_denied"


def test_our_own_page_is_not_foreign(gateway: Gateway) -> None:
    assert gateway.client.get("/admin/v1/status", headers={"Origin": gateway.url}).is_success


def test_unknown_things(gateway: Gateway) -> None:
    assert gateway.order("load", "nobody").json()["error"]["code"] == "model_not_found"
    assert gateway.client.get("/nowhere").json()["error"]["code"] == "not_found"
    answer = gateway.client.get("/v1/completions")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    assert answer.headers["x-request-id"]


@pytest.mark.slow
def test_ids_with_slashes_and_spaces(
    start_gateway: Callable[..., Gateway],
) -> None:
    model_id = "größe/modell eins"
    running = start_gateway(models=(f"demo={model_id}",))
    assert running.say("Hello", model_id)
    status = running.order("unload", quote(model_id)).raise_for_status().json()
    assert (status["id"], status["state"]) == (model_id, "unloaded")
    assert running.client.get(f"/v1/models/{quote(model_id)}").json()["id"] == model_id


@pytest.mark.slow
def test_a_full_queue_and_a_passed_deadline(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    held = tmp_path / "held"
    held.touch()
    running = start_gateway(
        models=(),
        config='[queue]\ndepth = 2\n[models.demo]\npath = "demo"\nmax_concurrency = 1\n',
        environment=sitecustomize(tmp_path / "site", held_steps(held)),
    )
    running.load()
    first = open_stream(running, STORY, max_tokens=10)
    eventually(lambda: running.model()["active_requests"] == 1)
    late = open_stream(running, STORY, headers={"X-Deadline-S": "1"}).join()
    assert (late.status, late.error["code"]) == (504, "deadline_exceeded")
    waiting = [open_stream(running, STORY, max_tokens=10) for _ in range(2)]
    eventually(lambda: running.model()["queue_depth"] == 2)
    refused = running.chat("Hello")
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "queue_full"
    assert int(refused.headers["retry-after"]) > 0
    held.unlink()
    assert all(stream.join().done for stream in (first, *waiting))
    assert running.say("Hello")


def test_a_body_over_the_limit(gateway: Gateway) -> None:
    answer = httpx.post(f"{gateway.url}/v1/completions", content=b"x" * (33 << 20), timeout=120)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"


@pytest.mark.slow
def test_a_load_that_takes_too_long(start_gateway: Callable[..., Gateway], tmp_path: Path) -> None:
    running = start_gateway(
        config="[workers]\nload_timeout_s = 1.0\n",
        environment=sitecustomize(
            tmp_path / "site", "import time\nif in_worker(): time.sleep(60)\n"
        ),
    )
    answer = running.chat("Hello")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "load_timeout"
    assert answer.headers["x-should-retry"] == "false"
    model = eventually(lambda: (m := running.model())["worker"] is None and m)
    assert model["state"] == "failed"
    assert "twice" in model["reason"]
    assert model["restarts"] == 1
    assert running.chat("Hello").status_code == 503
    assert len(running.events("start")) == 2, "no further attempt without an operator"


def test_a_model_that_cannot_be_loaded(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    broken = shapes.sliding_window(tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    running = start_gateway(models=(str(broken),))
    answer = running.order("load", "broken")
    assert answer.status_code == 503
    assert "model.safetensors is cut off" in answer.json()["error"]["message"]
    model = eventually(lambda: (m := running.model("broken"))["state"] == "failed" and m, START_S)
    assert "cut off" in model["reason"]
    refused = running.chat("Hello", "broken")
    assert (refused.status_code, refused.headers["x-should-retry"]) == (503, "false")
    assert "retry-after" not in refused.headers
    assert running.client.get("/health").json()["status"] == "degraded"
    assert running.order("unload", "broken").json()["state"] == "unloaded"


@pytest.mark.slow
def test_a_worker_that_crashes_in_its_start(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    running = start_gateway(
        config="[workers]\nrestart_limit = 0\nbackoff_limit = 0\n",
        environment=sitecustomize(
            tmp_path / "site",
            after_import("mlx_lm", 'import os; print("about to abort", flush=True); os.abort()'),
        ),
    )
    answer = running.order("load")
    assert answer.status_code == 503
    assert "SIGABRT" in answer.json()["error"]["message"]
    assert "about to abort" in running.client.get("/admin/v1/models/demo/logs").text


def test_an_interpreter_that_is_not_there(start_gateway: Callable[..., Gateway]) -> None:
    running = start_gateway(
        models=(), config='[models.demo]\npath = "demo"\npython = "/nowhere/python"\n'
    )
    answer = running.order("load")
    assert answer.status_code == 503
    assert "/nowhere/python" in answer.json()["error"]["message"]
    assert running.model()["state"] == "failed"
