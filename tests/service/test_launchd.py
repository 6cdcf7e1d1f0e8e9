"""The service in launchd: the plist, and launchctl driven through one that records and fails."""

from __future__ import annotations

import os
import plistlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.cli import service as command
from gateway.config.read import read_settings
from gateway.config.settings import Flags, Settings
from gateway.doctor.service import look_at_both
from gateway.service import launchd as launchd_module
from gateway.service import service as service_module
from gateway.service import status as status_module
from gateway.service.definition import (
    LABEL,
    MARK,
    Owner,
    ServiceDefinition,
    ServiceError,
    define,
    service_pid,
    stop_s,
)
from gateway.service.init_system import Done, ServiceJob
from gateway.service.launchd import Launchd
from gateway.service.service import Service
from gateway.workers import shutdown_steps
from tests.support.gateway import eventually
from tests.support.service_managers import ServiceManagers

REPOSITORY = Path(__file__).parents[2]
# launchd.plist(5): the keys that are used, and their types.
DOCUMENTED: dict[str, type] = {
    "Label": str,
    "UserName": str,
    "ProgramArguments": list,
    "EnvironmentVariables": dict,
    "WorkingDirectory": str,
    "RunAtLoad": bool,
    "KeepAlive": dict,
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "ProcessType": str,
    "LimitLoadToSessionType": list,
    "SoftResourceLimits": dict,
    "HardResourceLimits": dict,
    "Umask": int,
    "StandardOutPath": str,
    "StandardErrorPath": str,
}


class Case:
    """A service of launchd in a home of its own."""

    def __init__(self, account: Owner, config: Path) -> None:
        self.config = config
        self.account = account
        self.complaint: list[str] = []
        self.manager = Launchd(account, self.complaint.append, system=False)
        self.service = Service(self.manager, self.complaint.append)

    @property
    def settings(self) -> Settings:
        state_dir = self.account.home / "state"
        return read_settings(Flags(config=self.config, state_dir=state_dir), {})

    @property
    def definition(self) -> ServiceDefinition:
        return define(self.account, self.settings, self.config, {}, system=False)

    @property
    def pid(self) -> int | None:
        return service_pid(self.account.home / "state")

    @property
    def text(self) -> str:
        return "\n".join(self.complaint)

    def install(self) -> int:
        self.service.install(self.definition, self.settings)
        assert self.pid is not None
        return self.pid


@pytest.fixture
def case(account: Owner, config: Path, managers: ServiceManagers) -> Iterator[Case]:
    made = Case(account, config)
    yield made
    if (pid := made.pid) is not None:
        psutil.Process(pid).send_signal(signal.SIGTERM)
        eventually(lambda: made.pid is None)


def _plist(account: Owner, config: Path, *, system: bool, **environment: str) -> dict[str, Any]:
    settings = read_settings(Flags(config=config), {})
    definition = define(account, settings, config, environment, system=system)
    rendered = Launchd(account, print, system=system).render(definition)
    keys: dict[str, Any] = plistlib.loads(rendered)
    return keys


@pytest.mark.parametrize("system", [False, True])
def test_the_plist_has_documented_keys_of_documented_types(
    account: Owner, config: Path, system: bool
) -> None:
    keys = _plist(account, config, system=system)
    assert {name: type(value) for name, value in keys.items()} == {
        name: DOCUMENTED[name] for name in keys
    }
    assert set(DOCUMENTED) - set(keys) == {"LimitLoadToSessionType" if system else "UserName"}


def test_the_plist_keeps_the_promises(account: Owner, config: Path) -> None:
    keys = _plist(account, config, system=False, HF_HOME="/models", SECRET="no")
    assert keys["Label"] == LABEL
    assert keys["ProcessType"] == "Interactive"
    assert keys["KeepAlive"] == {"SuccessfulExit": False}
    assert keys["RunAtLoad"] is True
    assert keys["ThrottleInterval"] >= 10
    assert keys["SoftResourceLimits"]["NumberOfFiles"] >= 10240
    assert keys["LimitLoadToSessionType"] == ["Aqua", "Background"]
    assert "EnableTransactions" not in keys
    longest_s = sum(step.deadline_s for step in shutdown_steps.polite(1 << 50))
    assert keys["ExitTimeOut"] == stop_s(1.0)
    assert stop_s(1.0) > 1.0 + longest_s
    assert stop_s(500.0) == stop_s(1.0) + 499
    arguments = keys["ProgramArguments"]
    assert arguments[:5] == [sys.executable, "-P", "-m", "gateway", "serve"]
    assert arguments[arguments.index("--config") + 1] == str(config)
    paths = [arguments[0], *arguments[6::2], keys["WorkingDirectory"], keys["StandardErrorPath"]]
    assert all(Path(path).is_absolute() and "~" not in path for path in paths)
    environment = keys["EnvironmentVariables"]
    assert environment["HOME"] == str(account.home)
    assert all(Path(word).is_absolute() for word in environment["PATH"].split(":"))
    assert environment["HF_HOME"] == "/models"
    assert environment[MARK] == LABEL
    assert "SECRET" not in environment


def test_a_daemon_belongs_to_the_system_and_runs_as_the_account(
    account: Owner, config: Path
) -> None:
    assert _plist(account, config, system=True)["UserName"] == account.name
    assert Launchd(account, print, system=True).path == Path(
        "/Library/LaunchDaemons/io.bulkhead.gateway.plist"
    )


def test_deploy_shows_what_is_installed() -> None:
    shown = REPOSITORY / "deploy" / "launchd" / f"{LABEL}.plist"
    assert shown.resolve() == REPOSITORY / "gateway" / "service" / f"{LABEL}.plist"
    assert set(plistlib.loads(shown.read_bytes())) == set(DOCUMENTED) - {"UserName"}


def test_a_life_in_launchd(case: Case, managers: ServiceManagers) -> None:
    """Installed, installed again, replaced, restarted, stopped, started, removed."""
    gui = f"gui/{os.geteuid()}"
    target = f"{gui}/{LABEL}"
    first = case.install()
    assert ["bootstrap", gui, str(case.manager.path)] in managers.calls
    assert f"(pid {first})" in case.text
    status = case.service.status()
    assert (status.installed, status.loaded, status.pid) == (True, True, first)
    assert status.running_version == status.installed_version is not None
    assert status.warnings == []

    case.complaint.clear()
    managers.forget_calls()
    assert case.install() == first
    assert "there is nothing to do" in case.text
    assert managers.calls == []

    case.config.write_text(case.config.read_text() + "[queue]\ndepth = 7\n")
    case.config.write_text(case.config.read_text().replace("drain_s = 1.0", "drain_s = 2.0"))
    assert "may take" in case.service.status().warnings[0]
    second = case.install()
    assert second != first
    calls = [call[0] for call in managers.calls if call[0] != "print"]
    assert calls == ["kill", "bootout", "enable", "bootstrap"]
    assert case.service.status().warnings == []

    case.service.restart()
    third = case.pid
    assert third not in (None, second)
    case.service.stop()
    assert case.pid is None
    assert not case.manager.loaded()
    assert case.service.status().pid is None
    case.service.stop()
    case.service.start()
    assert case.pid is not None
    case.service.start()
    assert "It runs already" in case.complaint[-1]
    case.service.uninstall()
    assert case.pid is None
    assert not case.manager.path.exists()
    assert [call for call in managers.calls if call[0] != "print"][-1] == ["bootout", target]
    case.service.uninstall()
    assert "There is no service" in case.complaint[-1]
    assert not managers.booted_out_running
    assert not any("-k" in call for call in managers.calls)


@pytest.mark.parametrize(
    ("prints", "bootstraps"), [(125, 125), (112, 5), (113, 5), (0, 112), (0, 125), (0, 0)]
)
def test_a_machine_without_a_screen(
    case: Case, managers: ServiceManagers, prints: int, bootstraps: int
) -> None:
    managers.be_headless(prints, bootstraps)
    case.install()
    tries = [call for call in managers.calls if call[:2] == ["bootstrap", f"gui/{os.geteuid()}"]]
    assert len(tries) == (0 if prints else 1)
    user = f"user/{os.geteuid()}"
    assert ["bootstrap", user, str(case.manager.path)] in managers.calls
    assert "sudo bulkhead service install --system" in case.text
    case.service.stop()
    assert case.pid is None


@pytest.fixture
def twice(case: Case, managers: ServiceManagers) -> Case:
    """Installed over SSH, then somebody has logged in at the screen, where it came up again."""
    managers.be_headless()
    case.install()
    managers.log_in()
    gui = f"gui/{os.geteuid()}"
    subprocess.run(["launchctl", "bootstrap", gui, str(case.manager.path)], check=True, timeout=60)
    return case


@pytest.mark.slow
def test_two_jobs_are_shown_and_a_restart_leaves_one(
    twice: Case, managers: ServiceManagers, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, uid = str(twice.manager.path), os.geteuid()
    reading = twice.service.status()
    assert reading.jobs == [ServiceJob(f"gui/{uid}", path), ServiceJob(f"user/{uid}", path)]
    (warning,) = reading.warnings
    assert f"launchd has it 2 times, in gui/{uid} and user/{uid}" in warning
    monkeypatch.setattr(command, "init_system", lambda *_arguments, **_options: twice.manager)
    printed = CliRunner().invoke(main, ["service", "status"]).output
    assert [line.split()[1] for line in printed.splitlines() if line.startswith("Job:")] == [
        f"gui/{uid},",
        f"user/{uid},",
    ]
    assert "Warning: launchd has it 2 times" in printed
    (found,) = [finding for finding in look_at_both(twice.manager) if finding.severity != "ok"]
    assert (found.severity, found.remedy) == ("warning", "`bulkhead service restart` leaves one.")
    twice.service.restart()
    assert twice.service.status().jobs == [ServiceJob(f"gui/{uid}", path)]
    assert twice.service.status().warnings == []
    assert not managers.booted_out_running


def test_uninstall_removes_both_jobs(twice: Case, managers: ServiceManagers) -> None:
    twice.service.uninstall()
    assert twice.pid is None
    assert twice.manager.domains() == []
    assert not twice.manager.path.exists()
    assert not managers.booted_out_running


@pytest.mark.slow
def test_a_job_whose_definition_is_gone(case: Case, managers: ServiceManagers) -> None:
    case.install()
    case.manager.path.unlink()
    reading = case.service.status()
    assert not reading.installed
    assert [job.path for job in reading.jobs] == [None]
    assert "is gone, and launchd still has it" in reading.warnings[0]
    (found,) = look_at_both(case.manager)
    assert "is gone, and launchd still has it" in found.evidence
    psutil.Process(case.pid).send_signal(signal.SIGTERM)
    eventually(lambda: case.pid is None)
    case.service.uninstall()
    assert case.manager.domains() == []


def test_an_agent_and_a_daemon(
    account: Owner, config: Path, managers: ServiceManagers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is refused; where both are there, each tells of the other."""
    printed: list[str] = []
    users = Launchd(account, printed.append, system=False, root=account.home / "root")
    settings = read_settings(Flags(config=config, state_dir=account.home / "state"), {})
    daemon = users.other
    daemon.path.parent.mkdir(parents=True)
    daemon.path.write_bytes(daemon.render(define(account, settings, config, {}, system=True)))
    service = Service(users, printed.append)
    with pytest.raises(ServiceError, match="There is a service of the system already") as refused:
        service.install(define(account, settings, config, {}, system=False), settings)
    assert "`sudo bulkhead service uninstall --system`" in str(refused.value)
    assert users.files == []

    users.path.parent.mkdir(parents=True)
    users.path.write_bytes(users.render(define(account, settings, config, {}, system=False)))
    assert "there is another one" in service.status().warnings[0]
    found = [finding for finding in look_at_both(users) if "another one" in finding.evidence]
    assert len(found) == 1
    monkeypatch.setattr(os, "geteuid", lambda: 501)
    service.uninstall()
    assert users.files == []
    assert "`sudo bulkhead service uninstall --system` removes it." in printed[-1]
    assert daemon.files == [daemon.path]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    service.uninstall()
    assert daemon.files == []


def test_no_domain_at_all(case: Case, managers: ServiceManagers) -> None:
    managers.fail("print", 125, "Domain does not support specified action", times=2)
    with pytest.raises(ServiceError, match="--system"):
        case.install()
    assert {call[0] for call in managers.calls} == {"print"}
    assert not case.manager.path.exists()
    assert not (case.account.home / "state").exists()


def test_a_domain_that_goes_away(case: Case, managers: ServiceManagers) -> None:
    managers.fail("bootstrap", 125, "Bootstrap failed: 125: Domain does not support", times=2)
    with pytest.raises(ServiceError, match="--system"):
        case.install()
    assert not case.manager.path.exists()


def test_uninstall_where_launchd_cannot_be_asked(case: Case, managers: ServiceManagers) -> None:
    pid = case.install()
    managers.fail("", 125, "Domain does not support specified action", times=9)
    case.service.uninstall()
    assert not case.manager.path.exists()
    assert f"Its gateway still runs: `kill {pid}` ends it in order." in case.complaint


def test_a_bootstrap_that_does_nothing_is_no_success(case: Case, managers: ServiceManagers) -> None:
    managers.fail("bootstrap", 0, "", times=9)
    with pytest.raises(ServiceError, match="doesn't have the job"):
        case.install()
    assert not case.manager.path.exists()


def test_a_login_that_ends_within_the_bootstrap(
    case: Case, managers: ServiceManagers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS 26 answers 5 where the domain is gone, as it does where a job is in the way."""
    real = launchd_module.run

    def run(*arguments: str) -> Done:
        if arguments[:2] == ("launchctl", "bootstrap"):
            managers.be_headless(112, 5)
        return real(*arguments)

    monkeypatch.setattr(launchd_module, "run", run)
    case.install()
    assert case.manager.domains() == [f"user/{os.geteuid()}"]
    tries = [call[1] for call in managers.calls if call[0] == "bootstrap"]
    assert tries == [f"gui/{os.geteuid()}", f"user/{os.geteuid()}"]


def test_a_dry_run_changes_nothing(account: Owner, config: Path, managers: ServiceManagers) -> None:
    manager = Launchd(account, print, system=False)
    for domain in (f"gui/{account.uid}", f"user/{account.uid}"):
        assert manager.start_commands() == [
            f"launchctl enable {domain}/{LABEL}",
            f"launchctl bootstrap {domain} {manager.path}",
        ]
        managers.be_headless()
    assert {call[0] for call in managers.calls} == {"print"}


def test_a_mistake_in_the_configuration_is_not_started_again(account: Owner, config: Path) -> None:
    """launchd tries again after every exit but one with 0, and tells no statuses apart."""
    keys = _plist(account, config, system=False)
    assert keys["KeepAlive"] == {"SuccessfulExit": False}
    for content, shown in (
        ("[gateway]\nprot = 1\n", "did you mean port?"),
        ("[models]\ndiscover = []\n", "No model"),
    ):
        config.write_text(content)
        done = subprocess.run(
            keys["ProgramArguments"],
            env={**os.environ, **keys["EnvironmentVariables"]},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0
        assert shown in done.stderr
        assert "The service stays down until `bulkhead service start`." in done.stderr


def test_an_old_job_that_is_still_going_away(case: Case, managers: ServiceManagers) -> None:
    managers.fail("bootstrap", 5, "Bootstrap failed: 5: Input/output error", times=3)
    case.install()
    assert [call[0] for call in managers.calls].count("bootstrap") == 4


@pytest.mark.slow
def test_a_job_that_is_there_already(case: Case, managers: ServiceManagers) -> None:
    """As after a login that has loaded it meanwhile."""
    case.install()
    case.service.stop()
    path = str(case.manager.path)
    subprocess.run(["launchctl", "bootstrap", f"gui/{os.geteuid()}", path], check=True)
    pid = eventually(lambda: case.pid)
    managers.fail("print", 113, "Could not find service")
    managers.forget_calls()
    assert case.manager.start() is None
    assert "kickstart" in [call[0] for call in managers.calls]
    assert case.pid == pid


@pytest.mark.slow
def test_a_job_that_went_away_before_the_kickstart(case: Case, managers: ServiceManagers) -> None:
    case.install()
    case.service.stop()
    managers.fail("print", 0, "state = waiting")
    case.service.start()
    calls = [call[0] for call in managers.calls]
    assert [text for text in calls if text != "print"][-1] == "bootstrap"
    assert "kickstart" in calls
    assert case.pid is not None


def test_other_failure_has_the_words_of_launchctl(case: Case, managers: ServiceManagers) -> None:
    managers.fail("bootstrap", 78, "Bootstrap failed: 78: Function not implemented")
    with pytest.raises(ServiceError, match="78: Function not implemented"):
        case.install()


def test_failed_gateway_has_its_last_lines(
    case: Case, managers: ServiceManagers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_AFTER_OUTPUT_S", 0.5)
    case.config.write_text(case.config.read_text().replace('"demo"', '"/no/such/folder"'))
    with pytest.raises(ServiceError, match="There is no model folder /no/such/folder"):
        case.install()
    assert not case.manager.path.exists()
    assert not case.manager.loaded()


def test_a_port_of_another_program(case: Case, managers: ServiceManagers, port: int) -> None:
    with socket.socket() as taken:
        # Nobody listens, so that nobody's answer is waited for.
        taken.bind(("127.0.0.1", port))
        with pytest.raises(ServiceError, match=f"Another program has port {port}"):
            case.install()
    assert not case.manager.path.exists()
    assert managers.calls == []


def test_a_gateway_that_was_started_by_hand(
    case: Case,
    managers: ServiceManagers,
    port: int,
    start_gateway: Callable[..., Any],
) -> None:
    start_gateway("--port", str(port))
    with pytest.raises(ServiceError, match="that is not this service has port"):
        case.install()
    assert not case.manager.path.exists()


@pytest.mark.slow
def test_a_definition_that_cannot_be_written_ends_nothing(
    case: Case, managers: ServiceManagers
) -> None:
    pid = case.install()
    case.config.write_text(case.config.read_text().replace("drain_s = 1.0", "drain_s = 2.0"))
    in_the_way = case.manager.path.with_name(f".{case.manager.path.name}.new")
    in_the_way.mkdir()
    with pytest.raises(ServiceError, match="can't be written"):
        case.install()
    assert case.pid == pid


def test_a_state_folder_that_is_in_use(
    case: Case, managers: ServiceManagers, home: Path, start_gateway: Callable[..., Any]
) -> None:
    by_hand = start_gateway("--state-dir", str(home / "state"))
    with pytest.raises(ServiceError, match=rf"\(pid {by_hand.pid}\) uses the state folder"):
        case.install()
    assert managers.calls == []


@pytest.mark.slow
def test_a_daemon_in_the_systems_domain(
    account: Owner, config: Path, managers: ServiceManagers
) -> None:
    printed: list[str] = []
    manager = Launchd(account, printed.append, system=True, root=account.home)
    settings = read_settings(Flags(config=config, state_dir=account.home / "state"), {})
    service = Service(manager, printed.append)
    service.install(define(account, settings, config, {}, system=True), settings)
    path = account.home / "Library" / "LaunchDaemons" / f"{LABEL}.plist"
    assert ["bootstrap", "system", str(path)] in managers.calls
    assert path.stat().st_mode & 0o777 == 0o644
    assert service.status().loaded
    service.uninstall()
    assert not path.exists()
    assert service_pid(account.home / "state") is None
    assert not managers.booted_out_running


@pytest.mark.slow
def test_an_upgrade_is_warned_of_and_installed(
    case: Case, managers: ServiceManagers, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = case.install()
    for module in (service_module, status_module):
        monkeypatch.setattr(module, "VERSION", "9.9.9")
    warning = case.service.status().warnings[0]
    assert "9.9.9 is installed" in warning
    assert "bulkhead service restart" in warning
    assert case.install() != pid


def test_a_service_of_another_environment(
    case: Case, managers: ServiceManagers, home: Path
) -> None:
    case.install()
    other = home / "python"
    other.symlink_to(sys.executable)
    plist = case.manager.path.read_text().replace(sys.executable, str(other), 1)
    case.manager.path.write_text(plist)
    assert "another environment's Bulkhead" in case.service.status().warnings[0]
    other.unlink()
    assert f"It will not start again: There is no `{other}`" in case.service.status().warnings[1]


def test_a_definition_that_is_broken(case: Case, managers: ServiceManagers) -> None:
    case.manager.path.parent.mkdir(parents=True)
    case.manager.path.write_text("<plist>")
    with pytest.raises(ServiceError, match="uninstall` removes it, then install again"):
        case.service.status()


def test_the_second_of_two_sessions_lets_the_first_serve(
    case: Case, managers: ServiceManagers
) -> None:
    pid = case.install()
    keys = plistlib.loads(case.manager.path.read_bytes())
    second = subprocess.run(
        keys["ProgramArguments"],
        env={**os.environ, **keys["EnvironmentVariables"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 0
    assert f"The service runs already (pid {pid})" in second.stderr


def test_the_stand_in_knows_who_lives_without_a_proc(tmp_path: Path) -> None:
    """As on macOS, where nothing is read of a process."""
    managers = ServiceManagers(tmp_path)
    program = (managers.programs / "launchctl").read_text().partition("import plistlib")[0]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        code = program.replace('"/proc/', '"/no/proc/').replace('f"/proc/', 'f"/no/proc/')
        asks = f"{code}\nprint(alive({process.pid}), alive(int(arguments[0])))\n"
        gone = subprocess.run(
            [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
        )
        printed = subprocess.check_output(
            [sys.executable, "-c", asks, gone.stdout.decode().strip()]
        )
        assert process.stdin is not None
        process.stdin.close()
    assert printed.split() == [b"True", b"False"]
