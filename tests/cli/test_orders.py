from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.cli.canned import CannedGateway
from tests.cli.conftest import SLOW_S, SPACED_ID
from tests.cli.terminal import BULKHEAD, bulkhead, environment, started, terminal
from tests.support.faults import wrapped_python
from tests.support.folders import short_folder
from tests.support.gateway import START_S, Gateway
from tests.support.ports import free_port

GATEWAY = {
    "version": "9",
    "pid": 1,
    "uptime_s": 1.0,
    "state": "serving",
    "memory": {"total_bytes": 1, "available_bytes": 1, "granted_bytes": 0},
}


def test_load_tells_states_on_stderr_and_the_outcome_on_stdout(gateway: Gateway) -> None:
    gateway.order("unload").raise_for_status()
    done = bulkhead("load", "demo", url=gateway.url)
    assert done.returncode == 0
    worker = gateway.model()["worker"]
    assert re.fullmatch(rf"demo is ready \(pid {worker['pid']}(, [\d.]+ MB)?\)\n", done.stdout)
    assert "demo: starting\n" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_load_of_a_loaded_model_is_done_at_once(gateway: Gateway) -> None:
    gateway.load()
    pid = gateway.worker_pid()
    done = bulkhead("load", "demo", url=gateway.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert gateway.worker_pid() == pid


def test_restart_ends_with_another_worker(gateway: Gateway) -> None:
    gateway.load()
    pid = gateway.worker_pid()
    done = bulkhead("restart", "demo", url=gateway.url)
    assert done.returncode == 0
    assert gateway.worker_pid() != pid
    assert f"demo is ready (pid {gateway.worker_pid()}" in done.stdout


@pytest.mark.parametrize("verb", ["load", "restart"])
def test_a_model_that_was_loaded_and_displaced_at_once(verb: str, canned: CannedGateway) -> None:
    """Of two that take turns, the one that was first."""
    model = {
        "id": "m",
        "state": "unloaded",
        "queue_depth": 0,
        "active_requests": 0,
        "restarts": 0,
        "reason": "evicted: 'n' has taken its place",
    }
    canned.will_answer("/v1/models/m", {"id": "m", "state": "unloaded"})
    canned.will_answer("/admin/v1/status", {**GATEWAY, "models": [model]})
    canned.will_answer(f"/admin/v1/models/m/{verb}", model)
    done = bulkhead(verb, "m", url=canned.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "bulkhead: m is unloaded again: evicted: 'n' has taken its place.\n" in done.stderr


def test_unload(gateway: Gateway) -> None:
    gateway.load()
    done = bulkhead("unload", "demo", url=gateway.url)
    assert (done.returncode, done.stdout) == (0, "demo is unloaded\n")
    assert gateway.model()["worker"] is None


def test_unload_and_hold(gateway: Gateway) -> None:
    done = bulkhead("unload", "--hold", "demo", url=gateway.url)
    assert (done.returncode, done.stdout) == (0, "demo is held\n")
    assert gateway.model()["state"] == "held"


@pytest.mark.parametrize(("options", "sign"), [((), None), (("--force",), "SIGKILL")])
def test_kill(gateway: Gateway, options: tuple[str, ...], sign: str | None) -> None:
    gateway.load()
    pid = gateway.worker_pid()
    done = bulkhead("kill", *options, "demo", url=gateway.url)
    how = "with code 0" if sign is None else f"by {sign}"
    shown = f"worker {pid} ended {how}; demo is unloaded\n"
    assert (done.returncode, done.stdout) == (0, shown)
    assert gateway.model()["last_exit"]["signal"] == sign


@pytest.mark.slow
def test_kill_of_a_model_that_is_to_stay_loaded(start_gateway: Callable[..., Gateway]) -> None:
    """It waits for its next worker at once, which says nothing of the one that was killed."""
    running = start_gateway(
        models=(), config='[models.demo]\npath = "demo"\npinned = true\naliases = ["d"]\n'
    )
    running.load()
    pid = running.worker_pid()
    done = bulkhead("kill", "--force", "d", url=running.url)
    assert done.returncode == 0
    assert done.stdout.startswith(f"worker {pid} ended by SIGKILL; demo is ")
    assert bulkhead("kill", "nobody", url=running.url).returncode == 4


def test_kill_of_what_does_not_run(gateway: Gateway) -> None:
    gateway.order("unload").raise_for_status()
    done = bulkhead("kill", "--force", "demo", url=gateway.url)
    assert (done.returncode, done.stdout) == (0, "demo is unloaded: there was no worker\n")


@pytest.mark.parametrize("verb", ["unload", "restart", "kill"])
def test_force_is_sent(canned: CannedGateway, verb: str) -> None:
    model = {"queue_depth": 0, "active_requests": 0, "restarts": 0, "id": "m", "state": "unloaded"}
    canned.will_answer(f"/admin/v1/models/m/{verb}", model)
    canned.will_answer("/v1/models/m", model)
    canned.will_answer("/admin/v1/status", {**GATEWAY, "models": [model]})
    assert CliRunner().invoke(main, [verb, "--force", "m", "--url", canned.url]).exit_code == 0
    assert canned.bodies == [{"wait": True, "force": True, "hold": False}]


def test_a_process_that_does_not_end_is_a_failure(canned: CannedGateway) -> None:
    model = {
        "id": "m",
        "state": "stopping",
        "queue_depth": 0,
        "active_requests": 0,
        "restarts": 0,
        "worker": {"pid": 7, "footprint_bytes": 3_000_000_000},
    }
    canned.will_answer("/v1/models/m", model)
    canned.will_answer("/admin/v1/status", {**GATEWAY, "models": [model]})
    canned.will_answer("/admin/v1/models/m/kill", model)
    done = bulkhead("kill", "m", url=canned.url)
    assert done.returncode == 1
    assert "m is stopping (pid 7, 3.0 GB): its process has not ended yet." in done.stderr


def test_ids_with_slashes_and_spaces(fleet: Gateway) -> None:
    done = bulkhead("load", SPACED_ID, url=fleet.url)
    assert (done.returncode, done.stdout[: len(SPACED_ID)]) == (0, SPACED_ID)
    assert fleet.model(SPACED_ID)["state"] == "ready"


def test_a_load_that_fails(fleet: Gateway) -> None:
    done = bulkhead("load", "broken", url=fleet.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "bulkhead: 'broken' can't be loaded: " in done.stderr


def test_the_wait_can_be_watched_and_left(fleet: Gateway) -> None:
    fleet.order("kill", "slow", force=True).raise_for_status()
    with terminal("load", "slow", url=fleet.url) as screen:
        screen.expect("slow: starting, 1 s")
        screen.type("\x03")
        assert screen.exit_status() == 130
        assert "Not waiting any longer; the load goes on." in screen.screen
        assert "Traceback" not in screen.screen
    assert fleet.model("slow")["state"] == "starting"


def test_the_wait_can_be_left_without_a_terminal(fleet: Gateway) -> None:
    fleet.order("kill", "slow", force=True).raise_for_status()
    with started("load", "slow", url=fleet.url) as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == "slow: starting\n"
        waiting.send_signal(signal.SIGINT)
        stdout, stderr = waiting.communicate(timeout=60)
    assert (waiting.returncode, stdout) == (130, "")
    assert stderr == "bulkhead: Not waiting any longer; the load goes on.\n"


def test_a_load_in_the_commands_own_gateway_ends_with_it(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    slow = wrapped_python(tmp_path / "slow", f"sleep {SLOW_S}")
    config.write_text(
        f"[gateway]\nport = {free_port()}\n[workers]\nspare = 0\n"
        f'[models.slow]\npath = "demo"\npython = "{slow}"\n'
    )
    with short_folder() as folder:
        variables = environment(None) | {
            "BULKHEAD_CONFIG": str(config),
            "BULKHEAD_STATE_DIR": str(Path(folder) / "state"),
            "HF_HUB_CACHE": folder,
        }
        command = [*BULKHEAD, "run", "slow"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables) as waiting:
            assert waiting.stderr is not None
            assert "slow: starting\n" in iter(waiting.stderr.readline, "")
            waiting.send_signal(signal.SIGINT)
            stderr = waiting.communicate(timeout=START_S)[1]
    assert waiting.returncode == 130
    assert stderr == "bulkhead: The load ends with the gateway of this command.\n"
