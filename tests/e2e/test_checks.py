"""Checks of models through a gateway: their results, their ends, and what they leave alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.faults import after_import, sitecustomize
from tests.support.gateway import START_S, Gateway, eventually, gone
from tests.support.hub import Hub
from tests.support.shapes import DEMO, without_weights

pytestmark = pytest.mark.slow

PATH = "/admin/v1/models/{}/check"
# The room of a check of the demo model, and no more than a few MB beside it.
ONE_CHECK = "1.22GB"


def seconds_in(flag: Path) -> Path:
    """The file in which a check notes its time."""
    return flag.with_name("seconds")


def held(folder: Path, flag: Path) -> dict[str, str]:
    """An environment in which no check goes on while the flag is there, and each notes its time."""
    return sitecustomize(
        folder,
        after_import(
            "worker.errands.check.conductor",
            f"""
            import os, time
            original = module.check
            def check(errand):
                while os.path.exists({str(flag)!r}):
                    time.sleep(0.05)
                original(errand)
            module.check = check
            class Noting(module._Conductor):
                def __init__(self, errand, order):
                    with open({str(seconds_in(flag))!r}, "w") as file:
                        file.write(str(order.seconds))
                    super().__init__(errand, order)
            module._Conductor = Noting
            """,
        ),
    )


@pytest.fixture(scope="module")
def flag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flags") / "hold"


@pytest.fixture(scope="module")
def shardless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return without_weights(tmp_path_factory.mktemp("models") / "shardless")


@pytest.fixture(scope="module")
def gateway(
    flag: Path, shardless: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    running = Gateway(
        config=f'[memory]\nbudget = "4GB"\n[models.shardless]\npath = "{shardless}"\n'
        '[models.program]\ncommand = ["true", "{port}"]\n',
        environment=held(tmp_path_factory.mktemp("site"), flag),
    )
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture
def pool(flag: Path) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as running:
        yield running
        # The answers of checks that are held would never come.
        flag.unlink(missing_ok=True)


def check(gateway: Gateway, model: str = "demo") -> httpx.Response:
    return gateway.client.post(PATH.format(model))


def followed(gateway: Gateway, model: str = "demo") -> list[dict[str, Any]]:
    """The report after each change."""
    with gateway.client.stream("POST", PATH.format(model), json={"stream": True}) as stream:
        lines = [line for line in stream.iter_lines() if line.startswith("data: ")]
    return [json.loads(line[6:]) for line in lines]


def shown(gateway: Gateway, model: str = "demo") -> dict[str, Any]:
    report: dict[str, Any] = gateway.client.get(PATH.format(model)).raise_for_status().json()
    return report


def processes(pid: int) -> list[psutil.Process]:
    """The processes of checks."""
    children = psutil.Process(pid).children()
    return [child for child in children if child.cmdline()[-1:] == ["check"]]


def hold_one(
    gateway: Gateway, flag: Path, pool: ThreadPoolExecutor
) -> tuple[Future[httpx.Response], psutil.Process]:
    """A check that waits for the flag's end, and its process."""
    flag.touch()
    answer = pool.submit(check, gateway)
    # Python has started, and the answer must wait.
    (process,) = eventually(lambda: processes(gateway.pid), START_S)
    return answer, process


def test_a_whole_model_is_told_to_be_right_wherever_it_stands(gateway: Gateway) -> None:
    report = check(gateway).raise_for_status().json()
    assert (report["state"], report["reason"]) == ("done", None)
    faults = [finding for finding in report["findings"] if finding["severity"] == "fault"]
    # The demo model is too small to judge its numbers by those of others.
    assert {fault["section"] for fault in faults} <= {"numbers"}
    assert all(part["ran"] for part in report["sections"] if part["section"] != "vectors")
    assert report["environment"]["mlx_version"]
    status = gateway.model()["check"]
    assert (status["verdict"], status["stale"]) == (report["verdict"], False)
    assert gateway.client.get("/v1/models/demo").json()["check"] == status
    assert shown(gateway) == report
    event = gateway.events("checked")[-1]
    assert (event["model"], event["state"], event["verdict"]) == ("demo", "done", report["verdict"])
    assert gateway.model()["state"] == "unloaded", "nothing was loaded for it"
    assert not processes(gateway.pid)


def test_a_missing_shard_is_named_before_anything_is_loaded(gateway: Gateway) -> None:
    reports = followed(gateway, "shardless")
    assert reports[0]["state"] == "waiting"
    last = reports[-1]
    assert (last["state"], last["verdict"]) == ("done", "faults")
    fault = next(finding for finding in last["findings"] if finding["severity"] == "fault")
    assert fault["section"] == "files"
    assert fault["remedy"]
    counts = [len(report["sections"]) for report in reports]
    assert counts == sorted(counts), "sections are shown as they end"
    assert gateway.model("shardless")["check"]["faults"] == last["faults"]


@pytest.mark.parametrize("seconds", [9, 3601])
def test_the_time_of_a_check_has_bounds(gateway: Gateway, seconds: int) -> None:
    refused = gateway.client.post(PATH.format("demo"), json={"seconds": seconds})
    assert (refused.status_code, "seconds" in refused.text) == (400, True)


def test_a_check_takes_the_time_that_it_is_given(gateway: Gateway, flag: Path) -> None:
    gateway.client.post(PATH.format("shardless"), json={"seconds": 500}).raise_for_status()
    assert seconds_in(flag).read_text() == "500.0"


def test_a_command_or_an_unknown_model_is_refused(gateway: Gateway) -> None:
    refused = check(gateway, "program")
    assert (refused.status_code, "is a command" in refused.text) == (400, True)
    assert check(gateway, "nobody").status_code == 404
    assert gateway.client.delete(PATH.format("demo")).status_code == 404


def test_a_second_check_of_a_model_joins_and_one_of_another_waits(
    gateway: Gateway, flag: Path, pool: ThreadPoolExecutor
) -> None:
    first, process = hold_one(gateway, flag, pool)
    second, other = pool.submit(check, gateway), pool.submit(check, gateway, "shardless")
    waits = "another model is being checked"
    eventually(lambda: waits in gateway.client.get(PATH.format("shardless")).text)
    assert [child.pid for child in processes(gateway.pid)] == [process.pid]
    flag.unlink()
    assert first.result().json() == second.result().json()
    assert other.result().json()["verdict"] == "faults"


def test_a_cancelled_check_leaves_no_process_and_the_earlier_result(
    gateway: Gateway, flag: Path, pool: ThreadPoolExecutor
) -> None:
    check(gateway).raise_for_status()
    earlier = shown(gateway)
    answer, process = hold_one(gateway, flag, pool)
    assert shown(gateway)["state"] in ("waiting", "running")
    cancelled = gateway.client.delete(PATH.format("demo")).json()
    assert cancelled["state"] == "cancelled"
    assert gone(process.pid)
    assert answer.result().status_code == 503
    assert "was cancelled" in answer.result().text
    assert shown(gateway) == earlier
    assert gateway.status()["memory"]["granted_bytes"] == 0


def test_the_death_of_a_check_is_a_fault(
    gateway: Gateway, flag: Path, pool: ThreadPoolExecutor
) -> None:
    answer, process = hold_one(gateway, flag, pool)
    process.kill()
    report = answer.result()
    # It may have died before its first answer, which says that it can run at all.
    if report.status_code == 200:
        (fault,) = report.json()["findings"]
        assert (fault["severity"], "SIGKILL" in fault["evidence"]) == ("fault", True)
    else:
        assert "SIGKILL" in report.text


def test_a_stream_beside_a_check_has_the_same_text(
    gateway: Gateway, pool: ThreadPoolExecutor
) -> None:
    asked: dict[str, Any] = {"max_tokens": 400, "temperature": 0.0}
    gateway.load()
    pid, text = gateway.worker_pid(), gateway.say("Tell a story.", **asked)
    checked = pool.submit(check, gateway)
    eventually(lambda: processes(gateway.pid), START_S)
    assert gateway.say("Tell a story.", **asked) == text
    assert checked.result().json()["state"] == "done"
    assert gateway.worker_pid() == pid
    assert gateway.model()["restarts"] == 0
    gateway.order("unload").raise_for_status()


def test_a_result_outlives_the_gateway_and_becomes_stale_with_the_files(tmp_path: Path) -> None:
    folder, state_dir = tmp_path / "model", tmp_path / "state"
    shutil.copytree(DEMO, folder)
    state_dir.mkdir(0o700)
    serve = ("--state-dir", str(state_dir))
    first = Gateway(*serve, models=(str(folder),))
    try:
        checked = check(first, "model").raise_for_status().json()
    finally:
        assert first.stop() == 0, first.log
    second = Gateway(*serve, models=(str(folder),))
    try:
        eventually(lambda: second.model("model")["check"])
        assert shown(second, "model") == checked
        (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
        assert shown(second, "model")["stale"] is True
        assert second.model("model")["check"]["stale"] is True
        assert check(second, "model").json()["stale"] is False
        assert second.model("model")["check"]["stale"] is False
    finally:
        assert second.stop() == 0, second.log


def test_a_check_has_free_memory_alone_and_gives_way(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    flag = tmp_path / "hold"
    gateway = Gateway("--memory-budget", ONE_CHECK, environment=held(tmp_path / "site", flag))
    try:
        answer, process = hold_one(gateway, flag, pool)
        assert gateway.status()["memory"]["granted_bytes"] > 10**9
        gateway.load()
        assert answer.result().status_code == 503
        assert "needs its memory" in answer.result().text
        assert gone(process.pid)
        gateway.order("unload").raise_for_status()
    finally:
        assert gateway.stop() == 0, gateway.log
    small = Gateway("--memory-budget", "300MB")
    try:
        refused = check(small)
        assert refused.status_code == 507
        assert "raise memory.budget" in refused.text
    finally:
        assert small.stop() == 0, small.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_check_ends_with_its_gateway(
    tmp_path: Path, pool: ThreadPoolExecutor, number: signal.Signals
) -> None:
    gateway = Gateway()
    answer = pool.submit(check, gateway)
    (process,) = eventually(lambda: processes(gateway.pid), START_S)
    eventually(lambda: shown(gateway)["sections"], START_S)
    os.kill(gateway.pid, number)
    eventually(lambda: gone(process.pid))
    assert answer.exception() is not None or answer.result().status_code >= 200
    if number == signal.SIGTERM:
        assert gateway.stop() == 0, gateway.log
    else:
        gateway.stop()


def test_a_pulled_model_is_checked_if_that_is_configured(tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
    with Hub({"org/small": files}) as hub:
        gateway = Gateway(
            models=(),
            config=f'[hub]\nendpoint = "{hub.url}"\ncheck_pulls = true\n[memory]\nbudget = "4GB"\n',
            environment={"HF_HUB_CACHE": str(tmp_path / "cache")},
        )
        try:
            started = gateway.client.post("/admin/v1/pulls", json={"model": "org/small"}).json()
            text = gateway.client.get(f"/admin/v1/pulls/{started['id']}").text
            lines = [line for line in text.splitlines() if line.startswith("data: ")]
            states = [json.loads(line[6:]) for line in lines]
            assert "checking" in [pull["state"] for pull in states]
            last = states[-1]
            assert (last["state"], last["reason"], last["offered_as"]) == ("done", None, "small")
            (entry,) = gateway.client.get("/admin/v1/library").json()["models"]
            assert last["check"] == entry["check"] == gateway.model("small")["check"]
            gateway.client.delete("/admin/v1/library/org/small").raise_for_status()
            assert "org/small" not in (gateway.state_dir / "checks.json").read_text()
        finally:
            assert gateway.stop() == 0, gateway.log
