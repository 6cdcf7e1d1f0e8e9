"""What the doctor says of other machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.config.settings import Flags
from gateway.doctor.finding import Finding, Severity
from gateway.doctor.installation import Installation
from gateway.doctor.network import judge_host, look_at_hosts
from gateway.workers.ssh_messages import HostReading
from tests.support.gateway import Gateway, eventually

GB = 1_000_000_000
READING = HostReading(100 * GB, 128 * GB, 50 * GB, "normal")
CONFIG = '[hosts.gone]\nssh = "gone.invalid"\n'


def test_host_that_answers_is_ok():
    finding = judge_host("studio2", READING)
    assert finding.severity is Severity.OK
    assert "ranks may hold 100 GB, and 50.0 GB of 128 GB is available" in finding.evidence


def test_host_that_does_not_answer_is_an_error():
    finding = judge_host("studio2", "no route to host")
    assert finding.severity is Severity.ERROR
    assert "ssh -o BatchMode=yes" in str(finding.remedy)


def test_every_host_is_asked(tmp_path: Path):
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    (finding,) = look_at_hosts(Installation(Flags(config=config), {}))
    assert (finding.subject, finding.severity) == ("gone", Severity.ERROR)
    assert "ssh" in finding.evidence
    config.write_text("")
    (finding,) = look_at_hosts(Installation(Flags(config=config), {}))
    assert finding.severity is Severity.OK


def test_host_that_only_the_doctor_reaches_is_an_error(monkeypatch: pytest.MonkeyPatch):
    async def answers(name: str, _settings: object) -> Finding:
        return judge_host(name, READING)

    monkeypatch.setattr("gateway.doctor.network._look", answers)
    running = SimpleNamespace(unreached={"studio2": "no route to host"})
    settings = SimpleNamespace(hosts={"studio2": None, "studio3": None})
    installation = SimpleNamespace(settings=settings, running=lambda: running)
    unreached, reached = look_at_hosts(installation)  # type: ignore[arg-type]
    assert (unreached.severity, unreached.subject) == (Severity.ERROR, "studio2")
    assert "not the running gateway: no route to host." in unreached.evidence
    assert reached.severity is Severity.OK


def test_reason_of_the_running_gateway_is_known(start_gateway: Callable[..., Gateway]):
    gateway = start_gateway(config=CONFIG)
    eventually(lambda: _unreached(gateway))
    assert list(_unreached(gateway)) == ["gone"]


def _unreached(gateway: Gateway) -> dict[str, str]:
    flags = Flags(config=gateway.config_path, state_dir=gateway.state_dir)
    reasons = Installation(flags, {}).running().unreached
    return {name: reason for name, reason in reasons.items() if "ssh" in reason}
