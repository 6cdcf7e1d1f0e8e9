"""A running gateway takes another configuration, and nothing else notices."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.cli.terminal import bulkhead
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.streams import open_stream

STORY = "Tell me a story."
LONG = {"max_tokens": 200, "ignore_eos": True, "temperature": 0.0}
DEMO = 'path = "demo"\n'


def _config(*models: str, gateway: str = "drain_s = 1.0", queue: str = "") -> str:
    return "\n".join([f"[gateway]\n{gateway}\n[queue]\n{queue}", *models])


def _model(name: str, more: str = "") -> str:
    return f"[models.{name}]\n{DEMO}{more}\n"


def _reload(gateway: Gateway, config: str) -> httpx.Response:
    gateway.config_path.write_text(config, "utf-8")
    return gateway.client.post("/admin/v1/reload")


@pytest.mark.slow
def test_under_load_only_what_changed_is_touched(start_gateway: Callable[..., Gateway]) -> None:
    running = start_gateway(models=(), config=_config(*map(_model, ("same", "changed", "removed"))))
    for name in ("same", "changed", "removed"):
        running.load(name)
    expected = open_stream(running, STORY, "same", **LONG).join().outcome
    pids = {name: running.worker_pid(name) for name in ("same", "changed")}
    same = [open_stream(running, STORY, "same", **LONG) for _ in range(8)]
    changed = [open_stream(running, STORY, "changed", **LONG) for _ in range(8)]
    endless = {**LONG, "max_tokens": 3000}
    removed = [open_stream(running, STORY, "removed", **endless) for _ in range(8)]
    eventually(lambda: all(stream.text for stream in (*same, *changed, *removed)), START_S)
    answer = _reload(
        running,
        _config(
            _model("same"),
            _model("changed", "context_tokens = 2048\n"),
            _model("added", "preload = true\n"),
        ),
    )
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "added": ["added"],
        "removed": ["removed"],
        "changed": {"changed": ["context_tokens"]},
        "applied": [],
        "needs_restart": [],
        "names": [],
        "failed": [],
    }
    late = running.chat("Hello", "removed")
    assert (late.status_code, late.json()["error"]["code"]) == (404, "model_not_found")
    for stream in (*same, *changed):
        assert stream.join().outcome == expected
    for stream in removed:
        error = stream.join().error
        assert error is not None
        assert error["code"] == "model_unavailable"
        assert "'removed' was taken out of the configuration" in error["message"]
    assert running.worker_pid("same") == pids["same"]
    eventually(lambda: running.model("changed")["state"] == "ready", START_S)
    assert running.worker_pid("changed") != pids["changed"]
    assert running.model("changed")["restarts"] == 0
    eventually(lambda: running.model("added")["state"] == "ready", START_S)
    assert {model["id"] for model in running.status()["models"]} == {"same", "changed", "added"}
    memory = running.status()["memory"]
    granted = [model["worker"]["granted_bytes"] for model in running.status()["models"]]
    assert memory["granted_bytes"] == sum(granted)


def test_mistakes_change_nothing_and_are_all_said(start_gateway: Callable[..., Gateway]) -> None:
    running = start_gateway(models=(), config=_config(_model("a"), _model("b")))
    pid = running.load("a")["worker"]["pid"]
    refused = _reload(
        running,
        _config(_model("a", "prioritty = 1\n"), gateway='drain_s = "soon"') + "[nonsense]\n",
    )
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    path = str(running.config_path)
    assert "stays as it was" in message
    for line, text in ((2, "drain_s"), (7, "priority"), (9, "nonsense")):
        assert any(
            item.startswith(f"{path}:{line}: ") and text in item for item in message.splitlines()
        ), message
    assert [model["id"] for model in running.status()["models"]] == ["a", "b"]
    assert running.worker_pid("a") == pid
    (event,) = running.events("reload")
    assert len(event["mistakes"]) == 3


def test_reload_names_a_newly_missing_model_and_allows_one_missing_before(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    missing = f'[models.missing]\npath = "{tmp_path}/missing"\n'
    new = f'[models.new]\npath = "{tmp_path}/new"\n'
    running = start_gateway(models=(), config=_config(_model("here"), missing))
    refused = _reload(running, _config(_model("here"), missing, new))
    assert (refused.status_code, f"no model folder {tmp_path}/new" in refused.text) == (400, True)
    assert f"{tmp_path}/missing" not in refused.text
    answer = _reload(running, _config(_model("here"), missing, _model("added")))
    assert (answer.status_code, answer.json()["added"]) == (200, ["added"]), answer.text
    eventually(lambda: "no model folder" in (running.model("missing")["reason"] or ""))


@pytest.mark.slow
def test_reload_separates_immediate_changes_from_those_of_a_restart(
    start_gateway: Callable[..., Gateway],
) -> None:
    running = start_gateway(models=(), config=_config(_model("a"), _model("b")))
    running.load("a")
    budget = running.status()["memory"]["granted_bytes"] * 3 // 2
    config = (
        _config(
            _model("a", 'aliases = ["first"]\nttl_s = 1.0\n'),
            _model("b", "pinned = true\n"),
            gateway='host = "localhost"\ndrain_s = 3.0',
            queue="depth = 1",
        )
        + f"[memory]\nbudget = {budget}\n"
    )
    done = _reload(running, config).raise_for_status().json()
    assert done["changed"] == {"a": ["aliases", "ttl_s"], "b": ["pinned"]}
    assert done["applied"] == ["gateway.drain_s", "memory.budget", "queue.depth"]
    assert done["needs_restart"] == ["gateway.host"]
    assert running.status()["memory"]["budget_bytes"] == budget
    eventually(lambda: running.model("b")["state"] == "ready", START_S)
    (evicted,) = running.events("evict")
    assert evicted["model"] == "a", "idle, and there is room for one"
    refused = running.chat("Hello", "first")
    assert refused.status_code == 507, "the pinned one fills the budget"
    assert "'a' needs" in refused.json()["error"]["message"], "by its new alias"
    shown = bulkhead("config", "reload", url=running.url)
    assert (shown.returncode, shown.stdout) == (0, "gateway.host takes a restart of the gateway\n")
    running.config_path.write_text("[nonsense]\n", "utf-8")
    mistaken = bulkhead("config", "reload", url=running.url)
    assert mistaken.returncode == 1
    assert f"{running.config_path}:1: nonsense: unknown table" in mistaken.stderr
    again = _reload(running, config).raise_for_status().json()
    assert (again["applied"], again["needs_restart"]) == ([], ["gateway.host"])


@pytest.mark.slow
def test_a_smaller_budget_displaces_and_a_hangup_reads_again(
    start_gateway: Callable[..., Gateway],
) -> None:
    running = start_gateway(models=(), config=_config(_model("a"), _model("b")))
    granted = running.load("a")["worker"]["granted_bytes"]
    running.load("b")
    undisturbed = open_stream(running, STORY, "b", **LONG).join().outcome
    busy = open_stream(running, STORY, "b", **LONG)
    eventually(lambda: busy.text, START_S)
    running.config_path.write_text(
        _config(_model("a"), _model("b")) + f"[memory]\nbudget = {granted * 3 // 2}\n", "utf-8"
    )
    running.process.send_signal(signal.SIGHUP)
    eventually(lambda: running.model("a")["state"] == "unloaded")
    assert "has no room for it" in running.model("a")["last_exit"]["reason"]
    assert busy.join().outcome == undisturbed
    running.config_path.write_text(_config(_model("b")), "utf-8")
    running.process.send_signal(signal.SIGHUP)
    eventually(lambda: [model["id"] for model in running.status()["models"]] == ["b"])
    assert running.model("b")["state"] == "ready"
