"""Every model in a process of its own: what happens to one does not happen to the other."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support.faults import held_load, sitecustomize
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.platforms import linux_only
from tests.support.shapes import DEMO
from tests.support.streams import Probe, Stream, open_stream
from tests.support.usage import of_text

TWO = ("demo", f"{DEMO}=other")
STORY = "Tell me a story."
QUESTION = "Hello"


@pytest.fixture(scope="module")
def gateway():
    running = Gateway(models=TWO)
    running.load("demo")
    running.load("other")
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture(scope="module")
def whole(gateway: Gateway) -> str:
    return gateway.say(QUESTION)


def _long(gateway: Gateway, model_id: str) -> Stream:
    # So long that it still runs when somebody has seen that it does.
    return open_stream(gateway, STORY, model_id, max_tokens=600, ignore_eos=True)


def test_two_workers_are_two_processes(gateway: Gateway) -> None:
    pids = {gateway.worker_pid("demo"), gateway.worker_pid("other")}
    assert len(pids) == 2
    assert {psutil.Process(pid).ppid() for pid in pids} == {gateway.pid}


def test_the_death_of_one_leaves_the_other_alone(gateway: Gateway) -> None:
    gateway.load("demo")
    undisturbed = _long(gateway, "other").join()
    parked, elsewhere = len(gateway.events("park")), gateway.worker_pid("other")
    with Probe(gateway, "/livez") as livez, Probe(gateway, "/health") as health:
        doomed, other = _long(gateway, "demo"), _long(gateway, "other")
        eventually(lambda: doomed.text and other.text, START_S)
        pid = gateway.worker_pid("demo")
        os.kill(pid, signal.SIGKILL)
        doomed.join()
        other.join()
    assert not livez.failures
    assert not health.failures
    assert gateway.model("demo")["last_exit"]["signal"] == "SIGKILL"
    for stream in (doomed, other):
        assert (stream.done, stream.error, stream.text) == (True, None, undisturbed.text)
    assert [event["model"] for event in gateway.events("park")[parked:]] == ["demo"]
    assert gateway.worker_pid("other") == elsewhere


def test_an_exit_is_noticed_without_a_request(gateway: Gateway) -> None:
    gateway.load("demo")
    os.kill(gateway.worker_pid("demo"), signal.SIGKILL)
    model = eventually(lambda: (m := gateway.model("demo"))["worker"] is None and m)
    assert model["state"] == "unloaded"
    assert model["last_exit"]["signal"] == "SIGKILL"
    assert model["last_exit"]["code"] is None


def test_the_next_request_starts_a_new_incarnation(gateway: Gateway, whole: str) -> None:
    gateway.load("demo")
    before = gateway.model("demo")
    os.kill(before["worker"]["pid"], signal.SIGKILL)
    eventually(lambda: gateway.model("demo")["worker"] is None)
    assert gateway.say(QUESTION) == whole
    after = gateway.model("demo")
    assert after["worker"]["incarnation"] > before["worker"]["incarnation"]
    assert after["restarts"] == before["restarts"] + 1


@pytest.mark.slow
def test_a_request_that_is_not_streamed_survives_too(gateway: Gateway) -> None:
    gateway.load("demo")
    fields = {"max_tokens": 150, "ignore_eos": True}
    undisturbed = gateway.chat(STORY, **fields).json()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(gateway.chat, STORY, **fields)
        eventually(lambda: gateway.model("demo")["active_requests"] == 1, START_S)
        os.kill(gateway.worker_pid("demo"), signal.SIGKILL)
        answer = asked.result(60).raise_for_status().json()
    assert answer["choices"] == undisturbed["choices"]
    assert of_text(answer["usage"]) == of_text(undisturbed["usage"])


def test_requests_join_a_start_in_progress(gateway: Gateway, whole: str) -> None:
    gateway.load("demo")
    gateway.order("unload", "demo").raise_for_status()
    before = gateway.model("demo")
    starts = gateway.log.count("event=start model=demo")
    streams = [open_stream(gateway, QUESTION) for _ in range(6)]
    assert [stream.join().text for stream in streams] == [whole] * 6
    assert gateway.log.count("event=start model=demo") == starts + 1
    assert gateway.model("demo")["restarts"] == before["restarts"]


@linux_only("reads a process's maps in /proc")
def test_the_gateway_process_is_thin(gateway: Gateway) -> None:
    gateway.load("demo")
    gateway.load("other")
    maps = Path(f"/proc/{gateway.pid}/maps").read_text()
    for name in ("libmlx", "mlx/core", "numpy", "torch", "tokenizers", "safetensors"):
        assert name not in maps, name
    worker_maps = Path(f"/proc/{gateway.worker_pid('demo')}/maps").read_text()
    assert "mlx" in worker_maps
    rollup = Path(f"/proc/{gateway.pid}/smaps_rollup").read_text()
    pss_kb = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    assert pss_kb <= 70 * 1024


def test_the_gateway_imports_no_model_library(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    """The modules of the running process itself, as it lists them when asked by a signal."""
    listing = tmp_path / "modules"
    running = start_gateway(
        environment=sitecustomize(
            tmp_path / "site",
            f"""
            import signal
            def list_modules(*_):
                with open({str(listing)!r}, "w") as file:
                    file.write("\\n".join(sorted(sys.modules)))
            if not in_worker():
                signal.signal(signal.SIGWINCH, list_modules)
            """,
        )
    )
    assert running.say(QUESTION)
    os.kill(running.pid, signal.SIGWINCH)
    names = eventually(lambda: listing.exists() and listing.read_text().split(), START_S)
    packages = {name.partition(".")[0] for name in names}
    assert "gateway" in packages
    assert not packages & {"mlx", "mlx_lm", "transformers", "numpy", "torch", "worker"}


def test_health_answers_during_a_slow_load(
    start_gateway: Callable[..., Gateway], tmp_path: Path, record_property: Callable[..., None]
) -> None:
    held = tmp_path / "held"
    running = start_gateway(
        models=TWO, environment=sitecustomize(tmp_path / "site", held_load(held))
    )
    running.load("other")
    held.touch()
    with Probe(running, "/livez") as livez, Probe(running, "/health") as health:
        waiting = open_stream(running, QUESTION, "demo")
        late = open_stream(running, QUESTION, "demo", headers={"X-Deadline-S": "11"})
        eventually(lambda: running.model("demo")["state"] == "loading", START_S)
        assert running.say(QUESTION, "other")
        late.join(60)
        for stream in (waiting, late):
            assert stream.status == 200, "the answer begins before there is any of it"
            assert stream.comments >= 2, "comments keep the connection alive while the model loads"
            assert stream.text == ""
        assert (late.events, late.error["code"]) == (["error"], "deadline_exceeded")
        held.unlink()
        waiting.join(60)
    assert waiting.done
    assert waiting.text
    assert not livez.failures + health.failures
    assert livez.count > 20
    record_property("slowest_livez_ms", livez.slowest_s * 1000)
    record_property("slowest_health_ms", health.slowest_s * 1000)
    print(f"slowest /livez {livez.slowest_s * 1e3:.1f} ms, /health {health.slowest_s * 1e3:.1f} ms")


def test_a_folder_called_worker_does_not_shadow_ours(
    start_gateway: Callable[..., Gateway], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    monkeypatch.chdir(tmp_path)
    # An empty entry means the current directory.
    running = start_gateway(environment={"PYTHONPATH": os.pathsep})
    assert running.say(QUESTION)
