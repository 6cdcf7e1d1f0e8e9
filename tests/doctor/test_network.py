from __future__ import annotations

import os
from pathlib import Path

from gateway.access.api_key import KeyTerms
from gateway.access.key_file import KeyFile
from gateway.config.settings import Flags
from gateway.doctor.installation import Installation
from gateway.doctor.network import look_at_network
from gateway.system.state_dir import Address, StateDir, write_address
from tests.support.certificates import write_certificate


def finding_in(folder: Path, config: str = "", host: str | None = None) -> tuple[str, str]:
    file = folder / "config.toml"
    file.write_text(f"[gateway]\n{config}\n")
    flags = Flags(config=file, host=host, state_dir=folder)
    return finding_of(Installation(flags, {}))


def finding_of(installation: Installation) -> tuple[str, str]:
    (finding,) = look_at_network(installation)
    return finding.severity, finding.evidence


def tls(folder: Path, **ends: float) -> str:
    certificate, key = write_certificate(folder, **ends)
    return f'tls_certificate = "{certificate}"\ntls_key = "{key}"'


def test_loopback_needs_nothing(tmp_path: Path) -> None:
    severity, evidence = finding_in(tmp_path)
    assert (severity, "through a proxy, such as" in evidence) == ("ok", True)
    assert f"`bulkhead key add NAME --state-dir {tmp_path}` makes one" in evidence
    KeyFile(tmp_path / "keys.json").add("laptop", KeyTerms(), 1.0)
    assert finding_in(tmp_path) == ("ok", "This machine alone can reach 127.0.0.1, by plain HTTP.")


def test_another_name(tmp_path: Path) -> None:
    names = 'allowed_hosts = ["localhost", "mac.example"]'
    severity, evidence = finding_in(tmp_path, names)
    assert (severity, "mac.example" in evidence, "key add" in evidence) == ("error", True, True)
    KeyFile(tmp_path / "keys.json").add("laptop", KeyTerms(), 1.0)
    severity, evidence = finding_in(tmp_path, names)
    assert severity == "ok"


def test_another_host(tmp_path: Path) -> None:
    severity, evidence = finding_in(tmp_path, host="0.0.0.0")
    assert (severity, "bulkhead key add" in evidence) == ("error", True)
    KeyFile(tmp_path / "keys.json").add("laptop", KeyTerms(), 1.0)
    severity, evidence = finding_in(tmp_path, host="0.0.0.0")
    assert (severity, "plain HTTP" in evidence) == ("warning", True)
    severity, evidence = finding_in(tmp_path, tls(tmp_path), host="0.0.0.0")
    assert (severity, evidence) == ("ok", "Other machines can reach 0.0.0.0, by TLS.")


def test_certificates(tmp_path: Path) -> None:
    severity, evidence = finding_in(tmp_path, tls(tmp_path, ends_days=3))
    assert (severity, "expires on" in evidence) == ("warning", True)
    severity, evidence = finding_in(tmp_path, tls(tmp_path, ends_days=-1))
    assert (severity, "gateway.tls_certificate" in evidence) == ("error", True)


def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    certificate, _ = write_certificate(tmp_path)
    _, key = write_certificate(tmp_path, "other")
    severity, evidence = finding_in(
        tmp_path, f'tls_certificate = "{certificate}"\ntls_key = "{key}"'
    )
    assert (severity, "gateway.tls_certificate" in evidence) == ("error", True)


def test_a_gateway_whose_configuration_is_elsewhere(short_path: Path) -> None:
    """Where it says that it is, by the protocol that it says, and not where one would be."""
    state_dir = StateDir(short_path / "state")
    state_dir.acquire()
    write_address(state_dir, Address("https://127.0.0.1:1", os.getpid(), "served.crt"))
    installation = Installation(Flags(state_dir=state_dir.path), {})
    assert installation.running().url == "https://127.0.0.1:1"
    severity, evidence = finding_of(installation)
    assert severity == "ok"
    assert evidence.startswith("This machine alone can reach 127.0.0.1, by TLS.")
    state_dir.release()
