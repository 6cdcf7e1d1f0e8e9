"""A machine that is well, and then one fault at a time: real files, processes and sockets."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import VERSION
from gateway.access.api_key import KeyTerms
from gateway.access.key_file import KeyFile
from gateway.config.model_folders import DEMO_FOLDER
from gateway.config.settings import GatewaySettings, Settings
from gateway.service.definition import Owner, define
from gateway.service.systemd import Systemd
from gateway.system.processes import identify
from gateway.system.state_dir import StateDir
from gateway.workers.orphans import WorkerRecord, WorkerRecords
from tests.cli.canned import CannedGateway
from tests.doctor.machine import Machine
from tests.support.folders import short_folder
from tests.support.gateway import Gateway, eventually
from tests.support.platforms import linux_only
from tests.support.service_managers import ServiceManagers


@pytest.fixture(scope="module")
def gateway(own_gateway: Gateway) -> Gateway:
    return own_gateway


def _is_plain(text: str) -> bool:
    return all(item == "\n" or unicodedata.category(item) not in ("Cc", "Cs") for item in text)


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    """A small disk of its own, where mounting is allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "none", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


class TestHealthy:
    def test_before_the_first_start(self, machine: Machine) -> None:
        done = machine.run("--model", "demo")
        assert (done.returncode, done.stderr) == (0, "")
        *findings, summary = done.stdout.splitlines()
        assert all(finding.startswith("ok      ") for finding in findings)
        assert summary == f"All is well: {len(findings)} findings. No gateway runs."
        assert _is_plain(done.stdout)
        assert not machine.state_dir.exists()

    def test_with_a_gateway_that_has_a_worker(self, gateway: Gateway, machine: Machine) -> None:
        gateway.load()
        machine.state_dir, machine.port = gateway.state_dir, int(gateway.url.rpartition(":")[2])
        done = machine.run("--json", "--model", "demo")
        assert done.returncode == 0, done.stdout
        found = {
            finding["check"]: finding["evidence"] for finding in json.loads(done.stdout)["findings"]
        }
        assert gateway.url in found["gateway"]
        assert f"pid {gateway.pid}" in found["gateway"]
        assert found["version"] == f"{VERSION} is installed and runs."

    def test_a_lock_file_that_nobody_holds_is_none(self, machine: Machine) -> None:
        machine.state_dir.mkdir()
        ended = subprocess.Popen(["true"])
        ended.wait()
        (machine.state_dir / "gateway.lock").write_text(str(ended.pid))
        assert machine.findings() == []


class TestGateway:
    def test_a_lock_whose_holder_does_not_answer(self, machine: Machine) -> None:
        machine.state_dir.mkdir()
        hold = (
            "import fcntl, os, sys, time; lock = open(sys.argv[1], 'w'); "
            "fcntl.flock(lock, fcntl.LOCK_EX); lock.write(str(os.getpid())); lock.flush(); "
            "print(flush=True); time.sleep(100)"
        )
        lock = machine.state_dir / "gateway.lock"
        with subprocess.Popen([sys.executable, "-c", hold, lock], stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            try:
                check, severity, evidence = machine.fault()
            finally:
                holder.kill()
        assert (check, severity) == ("gateway", "error")
        assert f"pid {holder.pid}) holds the lock" in evidence
        assert f"doesn't answer at http://127.0.0.1:{machine.port}" in evidence

    @pytest.mark.slow
    def test_a_gateway_that_was_stopped(
        self, machine: Machine, start_gateway: Callable[..., Gateway]
    ) -> None:
        # Else it would notice meanwhile, and end its worker.
        running = start_gateway(config="[workers]\nheartbeat_timeout_s = 600\n")
        machine.config = running.config_path
        running.load()
        machine.state_dir, machine.port = running.state_dir, int(running.url.rpartition(":")[2])
        os.kill(running.pid, signal.SIGSTOP)
        try:
            found = machine.findings()[0]
        finally:
            os.kill(running.pid, signal.SIGCONT)
        assert (found["check"], found["severity"]) == ("gateway", "error")
        assert f"pid {running.pid}) was stopped" in found["evidence"]
        assert found["remedy"] == f"Let it go on: `kill -CONT {running.pid}`."

        pid = running.worker_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            (found,) = machine.findings("--model", "demo")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert (found["check"], found["severity"]) == ("workers", "warning")
        assert found["evidence"] == f"Worker {pid} (demo) was stopped, so it computes nothing."
        assert f"`kill -CONT {pid}`" in found["remedy"]
        assert "`bulkhead restart demo`" in found["remedy"]

    def test_without_a_configuration_the_models_are_the_gateways(
        self, machine: Machine, start_gateway: Callable[..., Gateway]
    ) -> None:
        running = start_gateway()
        machine.state_dir, machine.port = running.state_dir, int(running.url.rpartition(":")[2])
        answer = json.loads(machine.run("--json").stdout)
        (evidence,) = (
            finding["evidence"] for finding in answer["findings"] if finding["check"] == "model"
        )
        assert evidence == "None is configured here. The running gateway serves demo (unloaded)."

    @pytest.mark.slow
    def test_another_configuration_than_the_one_that_runs(
        self, machine: Machine, start_gateway: Callable[..., Gateway]
    ) -> None:
        running = start_gateway(models=(), config='[models.demo]\npath = "demo"\n')
        machine.state_dir, machine.port = running.state_dir, int(running.url.rpartition(":")[2])
        machine.config = running.config_path
        with running.config_path.open("a") as file:
            file.write("# changed\n")
        check, severity, evidence = machine.fault()
        assert (check, severity) == ("in force", "warning")
        assert f"{running.config_path} has changed since the gateway has read it." in evidence
        running.client.post("/admin/v1/reload").raise_for_status()
        assert machine.findings() == []
        machine.config = machine.home / "config.toml"
        machine.configure()
        check, severity, evidence = machine.fault()
        assert (check, severity) == ("in force", "warning")
        assert evidence == (
            f"The gateway has read {running.config_path}, and the doctor {machine.config}."
        )

    def test_stale_lock_that_another_process_has_open(self, machine: Machine) -> None:
        machine.state_dir.mkdir()
        ended = subprocess.Popen(["true"])
        ended.wait()
        with (machine.state_dir / "gateway.lock").open("w") as lock:
            lock.write(str(ended.pid))
            lock.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
            check, severity, evidence = machine.fault()
        assert (check, severity) == ("gateway", "error")
        assert f"pid {os.getpid()}) holds the lock" in evidence

    @pytest.mark.slow
    def test_a_taken_port(self, machine: Machine) -> None:
        with socket.create_server(("127.0.0.1", machine.port)):
            check, severity, evidence = machine.fault()
        assert (check, severity) == ("port", "error")
        assert f"Port {machine.port} on 127.0.0.1" in evidence
        assert f"pid {os.getpid()}" in evidence

    @pytest.mark.slow
    def test_an_address_that_this_machine_does_not_have(self, machine: Machine) -> None:
        machine.configure("[gateway]", 'host = "192.0.2.1"')
        KeyFile(machine.state_dir / "keys.json").add("phone", KeyTerms(), 1.0)
        (found,) = (finding for finding in machine.findings() if finding["check"] == "port")
        assert (found["severity"], "no address 192.0.2.1" in found["evidence"]) == ("error", True)

    def test_a_gateway_of_another_folder_at_the_port(
        self, gateway: Gateway, machine: Machine
    ) -> None:
        machine.port = int(gateway.url.rpartition(":")[2])
        check, severity, evidence = machine.fault()
        assert (check, severity) == ("port", "error")
        assert "doesn't use this state folder" in evidence

    def test_an_old_version_that_runs(self, machine: Machine, canned: CannedGateway) -> None:
        canned.will_answer("/health", {"version": "0.0.1", "uptime_s": 1.0})
        machine.port = int(canned.url.rpartition(":")[2])
        held = StateDir(machine.state_dir)
        held.acquire()
        try:
            check, severity, evidence = machine.fault()
        finally:
            held.release()
        assert (check, severity) == ("version", "warning")
        assert evidence == f"Version 0.0.1 runs, and {VERSION} is installed."

    @pytest.mark.slow
    @linux_only("writes a unit of systemd")
    def test_a_service_that_does_not_run(self, machine: Machine) -> None:
        managers = ServiceManagers(machine.home / "managers")
        account = Owner(getpass.getuser(), os.geteuid(), os.getegid(), machine.home)
        settings = Settings(gateway=GatewaySettings(state_dir=str(machine.state_dir)))
        unit = machine.home / ".config" / "systemd" / "user" / "bulkhead.service"
        unit.parent.mkdir(parents=True)
        definition = define(account, settings, None, {}, system=False)
        unit.write_bytes(Systemd(account, system=False).render(definition))
        machine.path = managers.path
        assert machine.fault() == ("service", "warning", f"{unit} is installed and stopped.")
        (managers.folder / "enabled").touch()
        check, severity, evidence = machine.fault()
        assert (check, severity) == ("service", "error")
        assert evidence == f"{unit} is installed, and its gateway doesn't run."

    @pytest.mark.slow
    def test_a_leftover(self, machine: Machine) -> None:
        workers = machine.state_dir / "workers"
        workers.mkdir(parents=True)
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as worker:
            WorkerRecords(workers).add(WorkerRecord(identify(worker.pid), "tiny"))
            try:
                check, severity, evidence = machine.fault()
                assert worker.poll() is None
            finally:
                worker.kill()
        assert (check, severity) == ("leftovers", "warning")
        assert f"Worker {worker.pid} (tiny)" in evidence
        assert machine.findings() == []


class TestMachine:
    def test_few_open_files(self, machine: Machine) -> None:
        limit, model = machine.findings("--model", "demo", limit=64)
        assert (limit["check"], limit["severity"]) == ("open files", "error")
        assert "The hard limit of open files is 64" in limit["evidence"]
        assert (model["check"], model["subject"]) == ("model", "demo")
        assert "limit of open files is too low" in model["remedy"]

    def test_files_for_the_workers_alone(self, machine: Machine) -> None:
        machine.configure("[queue]", "depth = 9000")
        # More than mlx-lm's own import leaves to whoever has it can't be set any more.
        assert machine.fault(limit=4096)[:2] == ("open files", "warning")

    def test_a_path_that_is_too_long(self, machine: Machine) -> None:
        machine.state_dir = machine.home / ("a" * 60) / ("b" * 60)
        check, severity, evidence = machine.fault()
        assert (check, severity) == ("socket path", "error")
        assert f"{machine.state_dir}/run" in evidence

    def test_a_name_that_is_too_long(self, machine: Machine) -> None:
        machine.state_dir = machine.home / ("a" * 300)
        assert machine.fault()[:2] == ("socket path", "error")

    def test_a_file_in_the_place_of_the_state_folder(self, machine: Machine) -> None:
        machine.state_dir.touch()
        check, severity, evidence = machine.fault()
        assert (check, severity) == ("state folder", "error")
        assert f"{machine.state_dir} is no folder" in evidence

    def test_a_file_of_the_state_folder_that_others_may_write(self, machine: Machine) -> None:
        machine.state_dir.mkdir(0o700)
        path = machine.state_dir / "address.json"
        path.touch()
        path.chmod(0o666)
        check, severity, evidence = machine.fault()
        assert (check, severity) == ("state folder", "error")
        assert f"`chmod go-w {path}`" in evidence

    def test_a_configuration_that_others_may_write(self, machine: Machine) -> None:
        machine.configure("[gateway]")
        machine.config.chmod(0o666)
        check, severity, evidence = machine.fault()
        assert (check, severity) == ("configuration", "error")
        assert f"`chmod go-w {machine.config}`" in evidence

    def test_a_folder_of_a_disk_that_is_only_read(self, machine: Machine) -> None:
        machine.state_dir.mkdir()
        with _mounted(machine.state_dir, "ro"):
            findings = machine.findings()
        assert {finding["check"] for finding in findings} == {"state folder"}
        assert "Read-only file system" in findings[0]["evidence"]

    def test_a_full_disk(self, machine: Machine) -> None:
        machine.state_dir.mkdir()
        with _mounted(machine.state_dir, "size=64k"):
            content = bytes(1 << 20)
            with pytest.raises(OSError, match="No space left"):
                (machine.state_dir / "filled").write_bytes(content)
            check, severity, evidence = machine.fault()
        assert (check, severity) == ("disk", "error")
        assert evidence == f"0 B are free at {machine.state_dir}."

    def test_an_interpreter_without_the_packages(self, machine: Machine) -> None:
        """The doctor's own has them: those are faults of another environment."""
        bare = machine.home / "bare"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
        machine.configure("[models.tiny]", 'path = "demo"', f'python = "{bare / "bin" / "python"}"')
        check, severity, evidence = machine.fault()
        assert (check, severity) == ("model", "error")
        assert "ModuleNotFoundError" in evidence


class TestConfiguration:
    @pytest.mark.slow
    def test_every_mistake_and_the_rest_is_looked_at(self, machine: Machine) -> None:
        machine.configure("[gateway]", "prot = 1", "[models.demo]", 'path = "demo"', "ttl = 1")
        first, second = machine.findings()
        assert {first["check"], second["check"]} == {"configuration"}
        assert first["evidence"] == (
            f"{machine.config}:2: gateway.prot: unknown key; did you mean port?"
        )
        assert ':5: models."demo".ttl: unknown key; did you mean ttl_s?' in second["evidence"]

    def test_a_file_that_is_no_toml(self, machine: Machine) -> None:
        machine.configure("[gateway")
        check, severity, evidence = machine.fault()
        assert (check, severity) == ("configuration", "error")
        assert f"{machine.config}:1: this is not TOML" in evidence

    def test_a_state_folder_of_nobody(self, machine: Machine) -> None:
        machine.state_dir = Path("~nosuchaccount/state")
        check, severity, evidence = machine.fault()
        assert (check, severity) == ("configuration", "error")
        assert "there is no home of ~" in evidence

    def test_a_model_without_a_path_is_one_mistake(self, machine: Machine) -> None:
        machine.configure("[models.tiny]")
        assert machine.fault()[0] == "configuration"


def _cut_short(model: Path) -> None:
    weights = model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1000)


def _lead_nowhere(model: Path) -> None:
    """As in a Hugging Face cache whose blobs were removed."""
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to(model / "gone")


def _rename_architecture(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "abacus"}))


def _unlink_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").unlink()


def _put(name: str, text: str) -> Callable[[Path], None]:
    return lambda model: (model / name).write_text(text) and None


# What is done to a copy of the demo model, and how the evidence begins. All are looked at in one
# run, as an examination takes the imports of a worker.
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a missing folder": (shutil.rmtree, "There is no model folder {given}.$"),
    "weights cut short": (_cut_short, "{model} is not whole: model.safetensors is cut off"),
    "weights that lead nowhere": (
        _lead_nowhere,
        "{model} is not whole: model.safetensors is a link",
    ),
    "half a template": (
        _put("chat_template.jinja", "{% for message in messages %}"),
        "Its chat template fails: ",
    ),
    "a template that refuses": (
        _put("chat_template.jinja", "{{ raise_exception('no') }}"),
        "Its chat template fails: ",
    ),
    "a broken tokenizer": (_put("tokenizer.json", "{}"), "Its tokenizer fails: "),
    "no tokenizer": (_unlink_tokenizer, "{model} is not whole: there is no tokenizer"),
    "an unknown architecture": (_rename_architecture, ".*abacus"),
}


@pytest.fixture(scope="module")
def damaged() -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """The folder of the damaged models, and what is found; good ones stand among them."""
    with short_folder() as folder:
        machine = Machine(Path(folder))
        lines = ["[models.first]", 'path = "demo"']
        for name, (damage, _) in DAMAGES.items():
            shutil.copytree(DEMO_FOLDER, machine.home / name)
            damage(machine.home / name)
            lines += [f'[models."{name}"]', f'path = "{machine.home / name}"']
        machine.configure(*lines, "[models.last]", 'path = "demo"')
        yield machine.home, machine.findings()


class TestModel:
    @pytest.mark.parametrize("name", DAMAGES)
    def test_each_is_found_by_itself(
        self, name: str, damaged: tuple[Path, list[dict[str, Any]]]
    ) -> None:
        home, findings = damaged
        (found,) = [finding for finding in findings if finding["subject"] == name]
        assert (found["check"], found["severity"]) == ("model", "error")
        # What is there is known by where it really is.
        evidence = DAMAGES[name][1].format(model=home.resolve() / name, given=home / name)
        assert re.match(evidence, found["evidence"]), found
        assert found["remedy"]

    def test_good_ones_are_left_alone(self, damaged: tuple[Path, list[dict[str, Any]]]) -> None:
        assert {entry["subject"] for entry in damaged[1]} == set(DAMAGES)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("budget", "expected", "parts"),
        [
            ("60MB", "error", ("Its floor is ", "can be had")),
            ("109MB", "warning", ("Its context of 4,096 tokens doesn't fit",)),
        ],
    )
    def test_model_that_does_not_fit_is_an_error(
        self, budget: str, expected: str, parts: tuple[str, ...], machine: Machine
    ) -> None:
        found = machine.fault("--model", f"{DEMO_FOLDER}=tiny", "--memory-budget", budget)
        check, severity, evidence = found
        assert (check, severity) == ("model", expected)
        assert all(part in evidence for part in parts)


@pytest.mark.slow
def test_the_speed_of_the_gateway_and_of_the_shell(gateway: Gateway, machine: Machine) -> None:
    """No judgement here: how fast this machine is just now is nobody's fault."""
    machine.state_dir, machine.port = gateway.state_dir, int(gateway.url.rpartition(":")[2])
    eventually(lambda: gateway.model()["active_requests"] == 0)
    done = machine.run("--json", "--throughput")
    made, read = [
        finding["evidence"]
        for finding in json.loads(done.stdout)["findings"]
        if finding["check"] == "throughput"
    ]
    assert "demo makes" in made
    assert "tokens/s in the gateway (started by hand) and" in made
    # All of the model's context but a few places.
    assert "demo reads 4,032 tokens at" in read


def test_without_a_gateway_there_is_nothing_to_compare(machine: Machine) -> None:
    check, severity, evidence = machine.fault("--throughput")
    assert (check, severity) == ("throughput", "warning")
    assert evidence.startswith("No gateway answers")
