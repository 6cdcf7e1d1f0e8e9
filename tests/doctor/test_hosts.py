"""What the doctor says of other machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from gateway.workers.agent_bodies import API, HostBody, HostMemoryBody

from gateway.config.settings import Flags
from gateway.doctor.finding import Finding, Severity
from gateway.doctor.installation import Installation
from gateway.doctor.network import judge_host, look_at_hosts
from tests.support.gateway import Gateway, eventually

GB = 1_000_000_000
ANSWER = HostBody(
    api=API,
    version="1.0",
    hostname="studio2",
    system="Darwin",
    back_end="metal",
    pid=7,
    versions={},
    memory=HostMemoryBody(100 * GB, 40 * GB, 60 * GB, 128 * GB, 50 * GB, "normal"),
    ranks=2,
)


def test_answering_agent_is_fine():
    finding = judge_host("studio2", ANSWER, None)
    assert finding.severity is Severity.OK
    assert "60.0 GB of 100 GB is free, 2 ranks run" in finding.evidence


def test_silent_agent_is_an_error():
    finding = judge_host("studio2", "no route to host", None)
    assert finding.severity is Severity.ERROR
    assert "bulkhead agent" in str(finding.remedy)


def test_agent_of_another_version_is_an_error():
    finding = judge_host("studio2", ANSWER, "studio2 has other versions.")
    assert finding.severity is Severity.ERROR
    assert "same version" in str(finding.remedy)


def test_each_is_asked(tmp_path: Path):
    key = tmp_path / "key"
    key.write_text("secret")
    key.chmod(0o600)
    config = tmp_path / "config.toml"
    config.write_text(
        f'[hosts.gone]\nurl = "https://127.0.0.1:1"\nkey_file = "{key}"\n'
        f'fingerprint = "{"0" * 64}"\n'
    )
    (finding,) = look_at_hosts(Installation(Flags(config=config), {}))
    assert (finding.subject, finding.severity) == ("gone", Severity.ERROR)
    assert "https://127.0.0.1:1 can't be reached" in finding.evidence
    config.write_text("")
    (finding,) = look_at_hosts(Installation(Flags(config=config), {}))
    assert finding.severity is Severity.OK


def test_agent_that_answers_only_the_doctor_is_an_error(monkeypatch: pytest.MonkeyPatch):
    async def answers(name: str, _settings: object) -> Finding:
        return judge_host(name, ANSWER, None)

    monkeypatch.setattr("gateway.doctor.network._look", answers)
    running = SimpleNamespace(unreached={"studio2": "no route to host"})
    settings = SimpleNamespace(hosts={"studio2": None, "studio3": None})
    installation = SimpleNamespace(settings=settings, running=lambda: running)
    denied, free = look_at_hosts(installation)  # type: ignore[arg-type]
    assert (denied.severity, denied.subject) == (Severity.ERROR, "studio2")
    assert "not the running gateway: no route to host." in denied.evidence
    assert "LaunchAgent" in str(denied.remedy)
    assert free.severity is Severity.OK


def test_reason_of_the_running_gateway_counts(
    start_gateway: Callable[..., Gateway], tmp_path: Path
):
    config = f'[hosts.gone]\nurl = "https://127.0.0.1:1"\nkey_file = "{tmp_path}/key"\n'
    (tmp_path / "key").write_text("secret")
    (tmp_path / "key").chmod(0o600)
    gateway = start_gateway(config=f'{config}fingerprint = "{"0" * 64}"\n')
    eventually(lambda: _unreached(gateway))
    assert list(_unreached(gateway)) == ["gone"]


def _unreached(gateway: Gateway) -> dict[str, str]:
    flags = Flags(config=gateway.config_path, state_dir=gateway.state_dir)
    found = Installation(flags, {}).running().unreached
    return {name: reason for name, reason in found.items() if "can't be reached" in reason}
