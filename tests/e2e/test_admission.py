"""Who gets memory, who waits for it, and what they are told."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import bulkhead
from tests.support import shapes
from tests.support.faults import (
    held_steps,
    in_engine_step,
    interpreter,
    sitecustomize,
    wrapped_python,
)
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.streams import open_stream

STORY = "Tell me a story."
# Each is granted about 200 MB: these of weights, the process, a context, working space.
MEGABYTES = 100
# A worker that is ready at once, and says nothing more.
FAKE = """
socket = connect()
socket.send(encode(hello()))
socket.recv()
socket.send(encode(ready()))
serve(socket)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shapes.sparse(tmp_path_factory.mktemp("models") / "sparse", MEGABYTES)


def _models(folder: Path, *names: str, **settings: dict[str, Any]) -> str:
    lines = []
    for name in names:
        lines += [f"[models.{name}]", f'path = "{folder}"', "context_tokens = 1024"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in settings.get(name, {}).items()]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def needed(folder: Path) -> int:
    """What one of them is granted once it has been measured on this machine, in bytes."""
    running = Gateway(models=(), config=_models(folder, "a"))
    running.load("a")
    learned = running.state_dir / "learned.json"
    eventually(lambda: learned.exists() and str(folder) in learned.read_text())
    assert running.order("unload", "a").status_code == 200
    granted: int = running.load("a")["worker"]["granted_bytes"]
    assert running.stop() == 0, running.log
    return granted


def _budget(bytes_: float) -> tuple[str, str]:
    return ("--memory-budget", str(int(bytes_)))


def _ask(gateway: Gateway, model_id: str, **fields: Any) -> Any:
    body = {"model": model_id, "prompt": "Once upon a time", "max_tokens": 4, **fields}
    return gateway.client.post("/v1/completions", json=body)


def test_the_least_recently_used_goes_first(
    start_gateway: Callable[..., Gateway], folder: Path, needed: int
) -> None:
    running = start_gateway(
        *_budget(needed * 2.5), models=(), config=_models(folder, "a", "b", "c", "d")
    )
    for name in ("a", "b", "a", "c", "d"):
        assert _ask(running, name).status_code == 200
    assert [event["model"] for event in running.events("evict")] == ["b", "a"]
    memory = running.status()["memory"]
    # What they took by then goes before what was estimated.
    assert memory["granted_bytes"] == pytest.approx(2 * needed, rel=0.15)
    assert memory["granted_bytes"] <= memory["budget_bytes"]
    assert memory["stranded_bytes"] == 0
    assert running.model("d")["estimate_bytes"] > 100_000_000
    assert re.match(r"evicted: 'c' needs \d+ MB$", running.model("b")["last_exit"]["reason"])


def test_pinned_models_stay_and_who_never_fits_is_told_the_numbers(
    start_gateway: Callable[..., Gateway], folder: Path, needed: int
) -> None:
    running = start_gateway(
        *_budget(needed * 1.5), models=(), config=_models(folder, "a", "b", a={"pinned": True})
    )
    running.load("a")
    refused = _ask(running, "b")
    assert refused.status_code == 507
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers
    error = refused.json()["error"]
    assert error["code"] == "insufficient_memory"
    assert re.search(
        r"'b' needs \d+ MB.*a is promised \d+ MB \(pinned\).*memory.budget", error["message"]
    )
    assert running.model("a")["state"] == "ready"
    assert running.model("b")["reason"] == error["message"]
    ordered = running.order("load", "b")
    assert (ordered.status_code, ordered.json()["error"]["code"]) == (507, "insufficient_memory")
    running.order("unload", "a").raise_for_status()
    assert _ask(running, "b").status_code == 200


@pytest.mark.slow
def test_the_spare_gives_way(
    start_gateway: Callable[..., Gateway], folder: Path, needed: int
) -> None:
    """Its bytes are whoever needs them, and it comes back when nobody does."""
    running = start_gateway(
        *_budget(needed * 1.1), "--spare", "1", models=(), config=_models(folder, "a")
    )
    eventually(lambda: running.status()["memory"]["spare_bytes"], START_S)
    assert _ask(running, "a").status_code == 200
    eventually(lambda: running.status()["memory"]["spare_bytes"] == 0)
    assert running.model("a")["state"] == "ready"
    running.order("unload", "a").raise_for_status()
    eventually(lambda: running.status()["memory"]["spare_bytes"], START_S)


@pytest.mark.slow
def test_files_that_change_after_the_estimate(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    """A model that has grown is estimated anew before it takes more than it was granted."""
    model_folder, flag = tmp_path / "model", tmp_path / "flag"
    shutil.copytree(shapes.DEMO, model_folder)
    grown = shapes.sparse(tmp_path / "grown", 2 * MEGABYTES)
    python = wrapped_python(tmp_path / "python", f"while [ ! -e {flag} ]; do sleep 0.1; done")
    running = start_gateway(
        models=(), config=f'[models.m]\npath = "{model_folder}"\npython = "{python}"\n'
    )
    running.order("load", "m", wait=False).raise_for_status()
    eventually(lambda: running.model("m")["state"] == "starting", START_S)
    granted = running.status()["memory"]["granted_bytes"]
    model_folder.rename(tmp_path / "before")
    grown.rename(model_folder)
    flag.touch()
    model = eventually(lambda: (m := running.model("m"))["state"] == "ready" and m, START_S)
    assert "its files have changed" in model["last_exit"]["reason"]
    assert model["worker"]["granted_bytes"] > 2 * granted
    assert _ask(running, "m").status_code == 200


@pytest.mark.slow
def test_a_busy_model_is_waited_for_and_a_priority_is_not(
    start_gateway: Callable[..., Gateway], folder: Path, needed: int, tmp_path: Path
) -> None:
    running = start_gateway(
        *_budget(needed * 1.5),
        models=(),
        # It is busy for as long as the others take to come, however fast the machine is.
        environment=sitecustomize(tmp_path / "site", in_engine_step("time.sleep(0.01)")),
        config="[queue]\nmax_wait_s = 15.0\n"
        + _models(folder, "a", "b", "urgent", urgent={"priority": 5}),
    )
    running.load("a")
    fields = {"max_tokens": 400, "ignore_eos": True, "temperature": 0.0}
    undisturbed = open_stream(running, STORY, "a", **fields).join()
    busy = open_stream(running, STORY, "a", **fields)
    eventually(lambda: busy.text, START_S)
    waiting = open_stream(running, STORY, "b", max_tokens=4)
    model = eventually(lambda: (m := running.model("b"))["reason"] and m, START_S)
    assert model["state"] == "waiting"
    assert re.search(r"it needs \d+ MB and .* are free; a is promised \d+ MB", model["reason"])
    urgent = open_stream(running, STORY, "urgent", max_tokens=4).join()
    assert urgent.done
    waiting.join()
    busy.join()
    assert waiting.done
    assert busy.outcome == undisturbed.outcome, "who was displaced goes on where it was"
    evictions = running.events("evict")
    assert (evictions[0]["model"], evictions[0]["for_model"]) == ("a", "urgent")
    assert evictions[0]["busy"] is True


@pytest.mark.parametrize(
    "rounds", [pytest.param(5, id="short"), pytest.param(100, id="long", marks=pytest.mark.chaos)]
)
@pytest.mark.timeout(1800)
def test_two_that_do_not_fit_together_are_never_loaded_together(
    rounds: int, start_gateway: Callable[..., Gateway], folder: Path, needed: int
) -> None:
    running = start_gateway(*_budget(needed * 1.9), models=(), config=_models(folder, "a", "b"))
    together = threading.Barrier(2)

    def load(name: str) -> None:
        together.wait(60)
        running.order("load", name, wait=False).raise_for_status()

    def one_waits() -> bool:
        status = running.status()
        models = status["models"]
        assert sum(model["worker"] is not None for model in models) <= 1
        assert status["memory"]["granted_bytes"] <= status["memory"]["budget_bytes"]
        alive = [model["worker"] is not None for model in models]
        waiting = [
            model["state"] == "waiting" and "needs" in (model["reason"] or "") for model in models
        ]
        return any(alive) and any(waiting)

    for _ in range(rounds):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(load, ("a", "b")))
        eventually(one_waits, START_S)
        for name in ("a", "b"):
            running.order("unload", name, force=True).raise_for_status()
        eventually(lambda: all(model["worker"] is None for model in running.status()["models"]))
    assert running.status()["memory"]["granted_bytes"] == 0


@pytest.mark.slow
def test_a_prompt_that_can_never_fit_into_the_grant(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    """The context is cut to what the budget holds, and says so; what is predicted comes true."""
    folder = tmp_path / "model"
    shutil.copytree(shapes.DEMO, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 500_000}))
    running = start_gateway(
        *("--spare", "1"),
        models=(),
        config=f"""
            [memory]
            budget = "200MB"
            [models.m]
            path = "{folder}"
            aliases = ["short"]
            context_tokens = 500000
        """,
    )
    where = ("--config", str(running.config_path), "--state-dir", str(running.state_dir))
    estimated = json.loads(bulkhead("estimate", "short", "--json", *where).stdout)
    assert (estimated["verdict"], estimated["possible_bytes"]) == (
        "fits with a shorter context",
        200_000_000,
    )
    tokens = estimated["granted_context_tokens"]
    assert f"a shorter context of {tokens:,} tokens" in bulkhead("estimate", "m", *where).stdout
    found = json.loads(bulkhead("doctor", "--json", *where).stdout)["findings"]
    (judged,) = [item["evidence"] for item in found if item["check"] == "model"]
    assert judged.endswith(f"it would get {tokens:,}.")

    assert running.model("m")["context_tokens"] is None
    loaded = running.load("m")
    assert (loaded["state"], loaded["context_tokens"]) == ("ready", tokens)
    assert f" {tokens:,} " in bulkhead("status", url=running.url).stdout
    listed = running.client.get("/v1/models/m").raise_for_status().json()
    assert listed["max_model_len"] == tokens
    refused = _ask(running, "m", prompt=[5] * 300_000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (
        400,
        "context_length_exceeded",
    )
    assert re.search(
        r"At most \d+ MB of the memory budget of 200 MB can be had for it at present\. The model "
        r"itself could hold 500000\.",
        refused.json()["error"]["message"],
    )
    assert _ask(running, "m").status_code == 200


def _leaks(tmp_path: Path, flag: Path, leaked_bytes: int) -> dict[str, str]:
    """Slow from then on, so that an answer outlasts the patience with it."""
    return sitecustomize(
        tmp_path / "site",
        in_engine_step(
            f"""
            if os.path.exists({str(flag)!r}):
                os.unlink({str(flag)!r})
                module.leak = bytearray(b"x") * {leaked_bytes}
            if hasattr(module, "leak"):
                time.sleep(0.05)
            """
        ),
    )


@pytest.mark.slow
def test_a_limit_follows_what_a_worker_holds_where_there_is_room(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    running = start_gateway(environment=_leaks(tmp_path, flag, 400_000_000))
    running.load()
    stream = open_stream(running, STORY, max_tokens=200, ignore_eos=True)
    eventually(lambda: stream.text, START_S)
    pid = running.worker_pid()
    flag.touch()
    eventually(lambda: running.model()["worker"]["granted_bytes"] > 400_000_000)
    assert stream.join().outcome[0] != "error"
    assert (running.worker_pid(), running.events("overgrown")) == (pid, [])
    assert running.model()["restarts"] == 0


@pytest.mark.slow
def test_a_worker_that_outgrows_the_budget_is_replaced(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    """Politely: it is no death, and its answers go on."""
    flag = tmp_path / "flag"
    running = start_gateway(*_budget(300e6), environment=_leaks(tmp_path, flag, 400_000_000))
    running.load()
    fields = {"max_tokens": 500, "ignore_eos": True}
    undisturbed = open_stream(running, STORY, **fields).join().outcome
    stream = open_stream(running, STORY, **fields)
    eventually(lambda: stream.text, START_S)
    pid = running.worker_pid()
    flag.touch()
    assert stream.join().outcome == undisturbed
    (overgrown,) = running.events("overgrown")
    assert overgrown["footprint_bytes"] > overgrown["limit_bytes"]
    assert running.worker_pid() != pid
    assert "the budget has no room" in running.model()["last_exit"]["reason"]
    assert running.model()["restarts"] == 0


@pytest.mark.slow
def test_status_shows_loans_and_waiting_requests(
    start_gateway: Callable[..., Gateway], folder: Path, needed: int
) -> None:
    running = start_gateway(*_budget(needed + 1e6), models=(), config=_models(folder, "a"))
    running.load("a")
    prompt = [5 + index % 200 for index in range(600)]
    body = {"model": "a", "prompt": prompt, "max_tokens": 60, "ignore_eos": True}
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(_ask, running, "a", **body) for _ in range(16)]
        model = eventually(lambda: _short(running))
        assert re.match(
            r"\d+ requests? waits? for memory: [\d.]+ [kMG]?B more is wanted, ", model["reason"]
        ), model["reason"]
        listed = running.client.get("/v1/models/a").raise_for_status().json()
        assert model["wanted_bytes"] > model["floor_bytes"] + model["lent_bytes"]
        for key in ("floor_bytes", "lent_bytes", "wanted_bytes"):
            assert isinstance(listed[key], int)
        assert all(future.result().status_code == 200 for future in asked)
    eventually(lambda: running.model("a")["reason"] is None)


def _short(running: Gateway) -> dict[str, Any] | None:
    model = running.model("a")
    return model if "wait" in (model["reason"] or "") else None


@pytest.mark.slow
def test_used_memory_is_remembered(start_gateway: Callable[..., Gateway], folder: Path) -> None:
    running = start_gateway(models=(), config=_models(folder, "a"))
    running.load("a")
    learned = running.state_dir / "learned.json"
    eventually(lambda: learned.exists() and str(folder) in learned.read_text())
    arguments = ("--state-dir", str(running.state_dir), "--context", "1024", str(folder))
    shown = bulkhead("estimate", *arguments)
    assert shown.returncode == 0, shown.stderr
    for part in ("process", "weights", "cache", "working space", "margin", "floor"):
        assert re.search(rf"^  {part} +[\d.]+ [kMG]?B", shown.stdout, re.MULTILINE), shown.stdout
    printed = json.loads(bulkhead("estimate", "--json", *arguments).stdout)
    assert printed["floor_bytes"] == sum(printed["parts"].values())
    off = printed["idle_bytes"] / printed["measured_idle_bytes"] - 1
    assert abs(off) <= 0.15, f"{off:+.1%}"
    percent = round(100 * off)
    told = f"{abs(percent)}% too {'high' if percent > 0 else 'low'}" if percent else "the same"
    assert told in shown.stdout
    assert "\nIts memory fits: its floor is " in shown.stdout
    assert printed["verdict"] == "fits"
    assert "bulkhead: There is no estimate for /nowhere" in bulkhead("estimate", "/nowhere").stderr


def test_rows_and_what_is_pinned_beside(
    start_gateway: Callable[..., Gateway], folder: Path, needed: int, tmp_path: Path
) -> None:
    config = f"[memory]\nbudget = {int(needed * 1.5)}\n" + _models(
        folder, "a", "b", b={"pinned": True}
    )
    path = tmp_path / "bulkhead.toml"
    path.write_text(config)
    where = ("--config", str(path), "--state-dir", str(tmp_path / "state"))
    shown = bulkhead("estimate", "a", *where).stdout
    assert "Its memory doesn't fit: its floor is " in shown
    assert re.search(r"is available beside the \d+ MB of pinned models\.", shown), shown
    alone = json.loads(bulkhead("estimate", "--json", "b", *where).stdout)
    assert (alone["verdict"], alone["possible_bytes"]) == ("fits", int(needed * 1.5))


class TestKeeping:
    @pytest.mark.slow
    def test_time_to_live_and_keep_alive(
        self, start_gateway: Callable[..., Gateway], tmp_path: Path
    ) -> None:
        fake = interpreter(tmp_path / "fake", FAKE)
        running = start_gateway(
            models=(),
            config=f"""
                [models]
                demo.path = "demo"
                brief = {{ path = "demo", ttl_s = 1.0 }}
                fake = {{ path = "demo", ttl_s = 1.0, python = "{fake}" }}
            """,
        )

        def idle() -> None:
            """Whoever had to go before it is gone."""
            running.load("fake")
            eventually(lambda: running.model("fake")["state"] == "unloaded")
            assert re.match(r"idle for [1-9]\d* s$", running.model("fake")["last_exit"]["reason"])

        assert _ask(running, "demo", keep_alive=0).status_code == 200
        eventually(lambda: running.model()["worker"] is None)
        assert re.match(r"idle for \d+ s$", running.model()["last_exit"]["reason"])
        running.load()
        idle()
        assert running.model()["state"] == "ready", "that was said to an earlier worker"
        assert _ask(running, "brief", keep_alive=-1).status_code == 200
        idle()
        assert running.model("brief")["state"] == "ready"
        refused = _ask(running, "demo", keep_alive="a while")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "keep_alive")

    def test_operators_only(self, start_gateway: Callable[..., Gateway]) -> None:
        running = start_gateway(
            models=(), config='[models.demo]\npath = "demo"\non_request = false\n'
        )
        refused = _ask(running, "demo")
        assert (refused.status_code, refused.headers["x-should-retry"]) == (503, "false")
        assert "only an operator loads it" in refused.json()["error"]["message"]
        running.load()
        assert _ask(running, "demo").status_code == 200
        stream = open_stream(running, STORY, max_tokens=3000, ignore_eos=True)
        eventually(lambda: stream.text, START_S)
        running.order("unload", wait=False).raise_for_status()
        assert running.model()["state"] == "draining"
        assert _ask(running, "demo").status_code == 503
        running.order("kill", force=True).raise_for_status()
        error = stream.join().error
        assert error is not None, "it would load the model again"
        assert error["code"] == "model_unavailable"
        eventually(lambda: running.model()["state"] == "held")

    def test_allowed_folders(self, tmp_path: Path) -> None:
        config = tmp_path / "config.toml"
        config.write_text(f'[gateway]\nallow = ["{tmp_path}", "mlx-community/*"]\n')
        refused = bulkhead("serve", "--config", str(config), "--model", "demo", "--port", "0")
        assert refused.returncode == 2
        assert "is not allowed: gateway.allow has" in refused.stderr


@pytest.mark.slow
def test_priorities_of_requests(start_gateway: Callable[..., Gateway], tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    running = start_gateway(
        models=(),
        config='[models.demo]\npath = "demo"\nmax_concurrency = 1\n',
        environment=sitecustomize(tmp_path / "site", held_steps(held)),
    )
    running.load()
    first = open_stream(running, STORY, max_tokens=10)
    eventually(lambda: running.model()["active_requests"] == 1)
    later = open_stream(running, STORY, max_tokens=100)
    eventually(lambda: running.model()["queue_depth"] == 1)
    urgent = open_stream(running, STORY, max_tokens=100, headers={"X-Priority": "5"})
    eventually(lambda: running.model()["queue_depth"] == 2)
    held.unlink()
    for stream in (first, later, urgent):
        stream.join()
    assert urgent.arrivals[-1] < later.arrivals[0]
    refused = running.client.post(
        "/v1/completions",
        json={"model": "demo", "prompt": "x"},
        headers={"X-Priority": "very"},
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "X-Priority")
