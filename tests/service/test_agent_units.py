"""An agent's definitions in deploy/: valid, like the gateway's, and what they run is an agent."""

from __future__ import annotations

import configparser
import os
import plistlib
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.agent import agent_command
from gateway.service.definition import LABEL
from gateway.service.systemd import UNIT
from gateway.workers import ladder
from tests.support.service_managers import verified

DEPLOY = Path(__file__).parents[2] / "deploy"
PLIST = DEPLOY / "launchd" / "io.bulkhead.agent.plist"
AGENT_UNIT = DEPLOY / "systemd" / "bulkhead-agent.service"
# The gateway says when it is ready and that it lives, and reads a configuration again.
GATEWAYS = {"NotifyAccess", "WatchdogSec", "ExecReload", "TimeoutStartSec"}
OWN = {"Label", "ProgramArguments", "EnvironmentVariables", "ExitTimeOut", "StandardErrorPath"}


def _plist(path: Path) -> dict[str, Any]:
    keys: dict[str, Any] = plistlib.loads(path.read_bytes())
    return keys


def _service(path: Path) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text("utf-8"))
    assert parser.sections() == ["Unit", "Service", "Install"]
    return dict(parser["Service"])


def _stop_s() -> float:
    """What an agent may take that ends the largest rank."""
    return ladder.longest_s() + 5.0


def test_the_plist_is_as_the_gateways_as_a_daemon() -> None:
    """An agent that is none can't reach its gateway before it is allowed to at the screen."""
    ours, theirs = _plist(PLIST), _plist(DEPLOY / "launchd" / f"{LABEL}.plist")
    assert set(theirs) - set(ours) == {"LimitLoadToSessionType"}
    assert set(ours) - set(theirs) == {"UserName"}
    assert {name for name in theirs.keys() & ours if ours[name] != theirs[name]} == OWN
    assert ours["Label"] == PLIST.stem
    assert ours["ExitTimeOut"] > _stop_s()
    assert all(str(each).startswith("/") for each in (ours["ProgramArguments"][0],))


def test_the_unit_is_as_the_gateways() -> None:
    ours, theirs = _service(AGENT_UNIT), _service(DEPLOY / "systemd" / UNIT)
    assert set(theirs) - set(ours) == GATEWAYS
    differing = {name for name in ours if ours[name] != theirs[name]}
    own = {"Type", "ExecStart", "Environment", "WorkingDirectory", "TimeoutStopSec"}
    assert differing == own
    assert ours["Type"] == "exec"
    assert int(ours["TimeoutStopSec"]) > _stop_s()


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    path = tmp_path / AGENT_UNIT.name
    text = AGENT_UNIT.read_text("utf-8")
    path.write_text(text.replace("%h/bulkhead/.venv/bin/python", sys.executable))
    done = verified(path)
    if done is None:
        pytest.skip("there is no systemd-analyze on this machine")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("definition", [PLIST, AGENT_UNIT], ids=["launchd", "systemd"])
def test_unit_runs_an_agent_that_ends_in_order(definition: Path, home: Path) -> None:
    if definition is PLIST:
        keys = _plist(PLIST)
        words, variables = keys["ProgramArguments"], dict(keys["EnvironmentVariables"])
    else:
        service = _service(AGENT_UNIT)
        words = shlex.split(service["ExecStart"])
        variables = dict(each.split("=", 1) for each in shlex.split(service["Environment"]))
    assert agent_command.name == words[-1]
    agent = subprocess.Popen(
        [sys.executable, *words[1:], "--host", "127.0.0.1", "--port", "0"],
        env={**os.environ, **variables, "HOME": str(home), "XDG_STATE_HOME": str(home)},
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert agent.stdout is not None
        assert "agent serves on https://127.0.0.1" in agent.stdout.readline()
        agent.send_signal(signal.SIGTERM)
        _, printed = agent.communicate(timeout=120)
    finally:
        agent.kill()
        agent.wait()
    assert agent.returncode == 0
    # What belongs on the gateway's host; the rest is in the log.
    assert "[hosts." in printed
    assert "Stopped" not in printed
    (log,) = home.rglob("gateway.log")
    assert "Stopped" in log.read_text("utf-8")
