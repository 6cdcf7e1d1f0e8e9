from __future__ import annotations

from pathlib import Path

from gateway.config.settings import Flags
from gateway.doctor.installation import Installation
from gateway.doctor.network import look_at_network
from gateway.keys.api_key import Terms
from gateway.keys.key_file import KeyFile
from tests.support.certificates import write_certificate


def found(folder: Path, config: str = "", host: str | None = None) -> tuple[str, str]:
    file = folder / "config.toml"
    file.write_text(f"[gateway]\n{config}\n")
    flags = Flags(config=file, host=host, state_dir=folder)
    (finding,) = look_at_network(Installation(flags, {}))
    return finding.severity, finding.evidence


def tls(folder: Path, **ends: float) -> str:
    certificate, key = write_certificate(folder, **ends)
    return f'tls_certificate = "{certificate}"\ntls_key = "{key}"'


def test_loopback_needs_nothing(tmp_path: Path) -> None:
    assert found(tmp_path) == ("ok", "This machine alone can reach 127.0.0.1, by plain HTTP.")


def test_another_host(tmp_path: Path) -> None:
    severity, evidence = found(tmp_path, host="0.0.0.0")
    assert (severity, "bulkhead key add" in evidence) == ("error", True)
    KeyFile(tmp_path / "keys.json").add("laptop", Terms(), 1.0)
    severity, evidence = found(tmp_path, host="0.0.0.0")
    assert (severity, "plain HTTP" in evidence) == ("warning", True)
    severity, evidence = found(tmp_path, tls(tmp_path), host="0.0.0.0")
    assert (severity, evidence) == ("ok", "Other machines can reach 0.0.0.0, by TLS.")


def test_certificates(tmp_path: Path) -> None:
    severity, evidence = found(tmp_path, tls(tmp_path, ends_days=3))
    assert (severity, "expires on" in evidence) == ("warning", True)
    severity, evidence = found(tmp_path, tls(tmp_path, ends_days=-1))
    assert (severity, "gateway.tls_certificate" in evidence) == ("error", True)
