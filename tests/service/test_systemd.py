"""The service in systemd: the units, what they start, and what an operator orders."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.config.read import read_settings
from gateway.config.settings import Flags
from gateway.service.definition import (
    Owner,
    ServiceDefinition,
    define,
    make_private_file,
    make_private_folder,
    owner,
    service_pid,
)
from gateway.service.systemd import UNIT, Systemd
from gateway.workers import shutdown_steps
from tests.support.gateway import eventually
from tests.support.platforms import linux_only
from tests.support.service_managers import ServiceManagers, verified

REPOSITORY = Path(__file__).parents[2]

pytestmark = linux_only("systemd is Linux's")


def _definition(account: Owner, config: Path, *, system: bool = False) -> ServiceDefinition:
    settings = read_settings(Flags(config=config, state_dir=account.home / "state"), {})
    return define(account, settings, config, {}, system=system)


def _rendered(account: Owner, config: Path, *, system: bool) -> str:
    manager = Systemd(account, system=system)
    return manager.render(_definition(account, config, system=system)).decode()


def _sections(unit: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit)
    return parser


@pytest.mark.parametrize("system", [False, True])
def test_systemd_finds_nothing_wrong(account: Owner, config: Path, system: bool) -> None:
    path = account.home / UNIT
    path.write_text(_rendered(account, config, system=system))
    done = verified(path)
    if done is None:
        pytest.skip("there is no systemd-analyze on this machine")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("system", [False, True])
def test_the_unit_keeps_the_promises(account: Owner, config: Path, system: bool) -> None:
    unit = _sections(_rendered(account, config, system=system))
    assert unit.sections() == ["Unit", "Service", "Install"]
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert service["Restart"] == "on-failure"
    assert service["KillMode"] == "mixed"
    assert service["NotifyAccess"] == "all"
    assert int(service["WatchdogSec"]) > 0
    longest_s = sum(step.deadline_s for step in shutdown_steps.polite(1 << 50))
    assert int(service["TimeoutStopSec"]) > 1.0 + longest_s
    orphaned_s = sum(timed_step.deadline_s for timed_step in shutdown_steps.orphaned(1 << 50))
    assert int(service["TimeoutStartSec"]) > orphaned_s
    assert int(service["LimitNOFILE"]) >= 10240
    assert service.get("User") == (account.name if system else None)
    assert unit["Install"]["WantedBy"] == ("multi-user.target" if system else "default.target")
    # The GPU, and kernels that are compiled at run time.
    for closed in ("PrivateDevices", "MemoryDenyWriteExecute", "ProtectClock", "ProtectHome"):
        assert closed not in service
    assert "@" not in "".join(service.values())


def test_the_systems_unit_adds_to_the_users(account: Owner, config: Path) -> None:
    users, systems = (
        _sections(_rendered(account, config, system=flag))["Service"] for flag in (False, True)
    )
    assert set(users.items()) < set(systems.items())


def test_deploy_shows_what_is_installed() -> None:
    for name in (UNIT, "bulkhead-system.service"):
        shown = REPOSITORY / "deploy" / "systemd" / name
        assert shown.resolve() == REPOSITORY / "gateway" / "service" / name


def test_odd_paths_survive(account: Owner, config: Path) -> None:
    odd = config.with_name('a "50%" $HOME \\ path.toml')
    odd.write_text(config.read_text())
    manager = Systemd(account, system=False)
    unit = manager.path
    unit.parent.mkdir(parents=True)
    unit.write_bytes(manager.render(_definition(account, odd)))
    assert (
        '"'
        + str(odd).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
        + '"'
        in unit.read_text()
    )
    installed = manager.read()
    assert installed is not None
    assert installed.config == odd
    done = verified(unit)
    assert done is None or done.stderr == ""


def test_started_unit_speaks_with_systemd(account: Owner, config: Path) -> None:
    """Its command, with a socket where systemd would listen."""
    service = _sections(_rendered(account, config, system=False))["Service"]
    variables = dict(word.split("=", 1) for word in shlex.split(service["Environment"]))
    address = str(account.home / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(60)
        process = subprocess.Popen(
            shlex.split(service["ExecStart"]),
            env={
                **os.environ,
                **variables,
                "NOTIFY_SOCKET": address,
                "WATCHDOG_USEC": "400000",
            },
            cwd=service["WorkingDirectory"],
            stdout=subprocess.DEVNULL,
        )
        try:
            ready = systemd.recv(65536).decode().splitlines()
            assert ready[0] == "READY=1"
            assert ready[1].startswith("STATUS=Serves on http://127.0.0.1:")
            assert [systemd.recv(65536) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            assert service_pid(account.home / "state") == process.pid
            process.send_signal(signal.SIGTERM)
            while b"STOPPING=1" not in (shown := systemd.recv(65536)):
                assert shown == b"WATCHDOG=1"
            assert process.wait(120) == 0
        finally:
            process.kill()
            process.wait()


# The orders


@pytest.fixture
def order(managers: ServiceManagers, config: Path, home: Path) -> Iterator[_Order]:
    made = _Order(home)
    yield made
    if (pid := made.pid) is not None:
        psutil.Process(pid).send_signal(signal.SIGTERM)
        eventually(lambda: made.pid is None)


class _Order:
    def __init__(self, home: Path) -> None:
        self.state_dir = home / "state"

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["service", *arguments])

    @property
    def pid(self) -> int | None:
        return service_pid(self.state_dir)


@pytest.mark.slow
def test_a_life_in_systemd(order: _Order, managers: ServiceManagers, config: Path) -> None:
    install = ("install", "--config", str(config), "--state-dir", str(order.state_dir))
    nothing = order("status")
    assert nothing.exit_code == 3
    assert "No service is installed" in nothing.output

    done = order(*install)
    assert done.exit_code == 0, done.output
    first = order.pid
    assert f"(pid {first})" in done.output
    assert [call[1] for call in managers.calls] == [
        "show",
        "daemon-reload",
        "enable",
        "reset-failed",
        "start",
    ]
    assert all(len(line) < 80 for line in done.output.splitlines())
    shown = order("status")
    assert shown.exit_code == 0
    assert f"pid {first}" in shown.output
    reading = json.loads(order("status", "--json").output)
    assert (reading["pid"], reading["installed"], reading["loaded"]) == (first, True, True)
    assert reading["running_version"] == reading["installed_version"]
    assert reading["warnings"] == []

    again = order(*install)
    assert "there is nothing to do" in again.output
    assert order.pid == first
    config.write_text(config.read_text().replace("drain_s = 1.0", "drain_s = 2.0"))
    replaced = order(*install)
    assert replaced.exit_code == 0, replaced.output
    assert "Replacing" in replaced.output
    assert f"Ending the gateway (pid {first}) in order" in replaced.output
    second = order.pid
    assert second not in (None, first)
    assert order("restart").exit_code == 0
    assert order.pid not in (None, second)
    logs = order("logs", "-n", "5")
    assert logs.exit_code == 0
    assert f"{order.pid}" in logs.output, "the gateway's own log tells of the one that runs"

    assert order("stop").exit_code == 0
    assert order.pid is None
    stopped = order("status")
    assert stopped.exit_code == 3
    assert order("start").exit_code == 0
    assert order("uninstall").exit_code == 0
    assert order.pid is None
    assert "--user disable bulkhead.service" in [" ".join(call) for call in managers.calls]
    assert order("start").exit_code == 1
    assert "There is no service" in order("uninstall").output


def test_a_configuration_that_cannot_serve(order: _Order, managers: ServiceManagers) -> None:
    empty = order.state_dir.with_name("empty.toml")
    empty.write_text("[models]\ndiscover = []\n")
    done = order("install", "--config", str(empty))
    assert done.exit_code == 2
    assert "no model to serve" in done.output
    empty.write_text("[gateway]\nprot = 1\n[memory]\nbudgte = 2\n")
    done = order("install", "--config", str(empty))
    assert done.exit_code == 2
    assert "prot" in done.output
    assert "budgte" in done.output
    assert managers.calls == []


def test_a_port_that_moves(order: _Order, config: Path) -> None:
    config.write_text("[gateway]\nport = 0\n[models.demo]\npath = 'demo'\n")
    done = order("install", "--config", str(config), "--state-dir", str(order.state_dir))
    assert done.exit_code == 1
    assert "a port that stays" in done.output


NO_BUS = "Failed to connect to bus: No medium found"


def _unit(home: Path) -> Path:
    return home / ".config" / "systemd" / "user" / UNIT


def _left(home: Path) -> list[Path]:
    return [path for path in _unit(home).parent.rglob("*") if not path.is_dir()]


def test_without_a_bus_nothing_is_written(
    order: _Order, managers: ServiceManagers, config: Path, home: Path
) -> None:
    managers.fail("--user", 1, NO_BUS, times=9)
    done = order("install", "--config", str(config), "--state-dir", str(order.state_dir))
    assert done.exit_code == 1
    assert NO_BUS in " ".join(done.output.split())
    assert "sudo bulkhead service install --system" in " ".join(done.output.split())
    assert not _unit(home).parent.exists()
    assert not order.state_dir.exists()
    assert [call[1] for call in managers.calls] == ["show"]


@pytest.mark.parametrize("step", ["daemon-reload", "enable", "start"])
def test_a_step_that_fails_leaves_nothing(
    order: _Order, managers: ServiceManagers, config: Path, home: Path, step: str
) -> None:
    managers.fail(f"--user {step}", 1, "no such luck")
    done = order("install", "--config", str(config), "--state-dir", str(order.state_dir))
    assert done.exit_code == 1
    assert "no such luck" in done.output
    assert "No service is installed. `journalctl --user-unit=" in " ".join(done.output.split())
    assert _left(home) == []
    assert order.pid is None
    assert "No service is installed" in order("status").output


@pytest.mark.slow
def test_a_replacement_that_fails_leaves_the_earlier_one(
    order: _Order, managers: ServiceManagers, config: Path, home: Path
) -> None:
    install = ("install", "--config", str(config), "--state-dir", str(order.state_dir))
    assert order(*install).exit_code == 0
    before = _unit(home).read_bytes()
    config.write_text(config.read_text().replace("drain_s = 1.0", "drain_s = 2.0"))
    managers.fail("--user start", 1, "no such luck")
    done = order(*install)
    assert done.exit_code == 1
    assert "The earlier service runs again." in done.output
    assert _unit(home).read_bytes() == before
    assert order.pid is not None


def test_uninstall_without_a_bus(
    order: _Order, managers: ServiceManagers, config: Path, home: Path
) -> None:
    """As from su, or once the account may not log in any more."""
    install = ("install", "--config", str(config), "--state-dir", str(order.state_dir))
    assert order(*install).exit_code == 0
    assert len(_left(home)) == 2
    managers.fail("--user", 1, NO_BUS, times=9)
    done = order("uninstall")
    assert done.exit_code == 0, done.output
    assert f"`kill {order.pid}` ends it in order" in " ".join(done.output.split())
    assert _left(home) == []
    assert "There is no service" in order("uninstall").output


@pytest.mark.parametrize("content", ["", "[Service]\nExecStart=\n", "\N{SNOWMAN}"])
def test_uninstall_of_a_unit_that_cannot_be_read(
    order: _Order, managers: ServiceManagers, home: Path, content: str
) -> None:
    _unit(home).parent.mkdir(parents=True)
    _unit(home).write_text(content, "utf-16")
    done = order("uninstall")
    assert done.exit_code == 0, done.output
    assert "can't be read" in done.output
    assert _left(home) == []


@pytest.mark.parametrize("system", [False, True])
def test_a_dry_run_changes_nothing(
    order: _Order, managers: ServiceManagers, config: Path, home: Path, system: bool
) -> None:
    before = sorted(home.rglob("*"))
    install = ("install", "--config", str(config), "--state-dir", str(order.state_dir))
    shown = order(*install, "--dry-run", *(["--system"] if system else []))
    assert shown.exit_code == 0, shown.output
    assert managers.calls == []
    assert sorted(home.rglob("*")) == before
    assert f'\nExecStart="{sys.executable}"' in shown.output
    if system:
        assert "# /etc/systemd/system/bulkhead.service\n" in shown.output
        return
    assert f"# {_unit(home)}\n" in shown.output
    assert order(*install).exit_code == 0
    assert _unit(home).read_text() in shown.output
    ran = [call for call in managers.calls if call[1] != "show"]
    _, _, commands = shown.output.partition("# Then:\n")
    assert commands.splitlines() == [" ".join(("systemctl", *values)) for values in ran]


def test_a_mistake_in_the_configuration_is_not_started_again(account: Owner, config: Path) -> None:
    service = _sections(_rendered(account, config, system=False))["Service"]
    config.write_text("[gateway]\nprot = 1\n")
    variables = dict(word.split("=", 1) for word in shlex.split(service["Environment"]))
    done = subprocess.run(
        shlex.split(service["ExecStart"]),
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert service["RestartPreventExitStatus"] == str(done.returncode) == "2"
    assert "did you mean port?" in done.stderr


def test_with_sudo_and_without_system(
    order: _Order, managers: ServiceManagers, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        done = order("start", "--system")
        assert done.exit_code == 2
        assert "needs root" in done.output
        return
    monkeypatch.setenv("SUDO_USER", "daemon")
    done = order("start")
    assert done.exit_code == 2
    assert "add --system" in done.output
    assert managers.calls == []


def test_root_asks_the_manager_of_the_account(
    account: Owner, managers: ServiceManagers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sudo, of the service beside the system's."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    theirs = Owner("you", 501, 20, account.home)
    Systemd(theirs, system=True).other.probe()
    assert managers.calls == [["--user", "--machine=you@.host", "show", "--property=Version"]]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may install for the system")
def test_sudo_installs_for_who_has_called_it(
    home: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"SUDO_USER": "daemon", "HOME": "/root", "XDG_STATE_HOME": "/root/state"}
    account = owner(environment, system=True)
    assert account.name == "daemon"
    assert environment == {"SUDO_USER": "daemon", "HOME": str(account.home)}
    unit = _rendered(account, config, system=True)
    assert "User=daemon" in unit
    made = home / "deep" / "state" / "crash.log"
    make_private_folder(made.parent, account)
    make_private_file(made, account)
    assert {path.stat().st_uid for path in (made, made.parent, made.parent.parent)} == {account.uid}
    assert made.stat().st_mode & 0o777 == 0o600
    assert made.parent.stat().st_mode & 0o777 == 0o700
