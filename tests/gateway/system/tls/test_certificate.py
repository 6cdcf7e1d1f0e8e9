from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from gateway.access.api_key import KeyTerms
from gateway.access.key_file import KeyFile
from gateway.config.machine_rules import Places, network_cautions, network_complaints
from gateway.config.settings import GatewaySettings, Settings
from gateway.system.tls import CertificateError, Certificates, check, distrust, ends_soon, trusting
from tests.support.certificates import write_certificate


def settings(folder: Path, **fields: object) -> Settings:
    return Settings(gateway=GatewaySettings(state_dir=str(folder), **fields))  # type: ignore[arg-type]


def complaints(settings: Settings) -> list[tuple[str, str]]:
    return [(str(place[1]), text) for place, text in network_complaints(settings, Places())]


def test_a_good_pair(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    check(certificate, key, time.time())
    assert ends_soon(certificate, time.time()) is None
    files = {"tls_certificate": str(certificate), "tls_key": str(key)}
    assert complaints(settings(tmp_path, **files)) == []


def test_mistakes_of_pair_are_named(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    other, other_key = write_certificate(tmp_path, "other")
    broken = tmp_path / "broken"
    broken.write_text("-----BEGIN CERTIFICATE-----\nno\n")
    locked = tmp_path / "locked.key"
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    locked.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    old, old_key = write_certificate(tmp_path, "old", ends_days=-1)
    new, new_key = write_certificate(tmp_path, "new", begins_days=5)
    for one, two, said in (
        (tmp_path / "none", key, "can't be read: No such file"),
        (certificate, tmp_path, "can't be read: Is a directory"),
        (certificate, other_key, "is not the key of"),
        (other, key, "is not the key of"),
        (broken, key, "no certificate and key in PEM"),
        (certificate, broken, "no certificate and key in PEM"),
        (certificate, locked, "has a password"),
        (old, old_key, "expired on"),
        (new, new_key, "is not valid before"),
    ):
        with pytest.raises(CertificateError, match=said):
            check(one, two, time.time())
        found = complaints(settings(tmp_path, tls_certificate=str(one), tls_key=str(two)))
        assert [place for place, _ in found] == ["tls_certificate"]
        assert said in found[0][1]


@pytest.mark.parametrize("name", ["tls_certificate", "tls_key"])
def test_certificate_needs_key_and_key_needs_certificate(tmp_path: Path, name: str) -> None:
    assert [place for place, _ in complaints(settings(tmp_path, **{name: "/x"}))] == [name]


def test_an_end_that_is_near(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, ends_days=3)
    files = {"tls_certificate": str(certificate), "tls_key": str(key)}
    assert complaints(settings(tmp_path, **files)) == []
    (caution,) = network_cautions(settings(tmp_path, **files).gateway)
    assert "expires on" in caution


def test_another_host_needs_keys_and_is_warned_of_plain_http(tmp_path: Path) -> None:
    open_ = settings(tmp_path, host="0.0.0.0")
    ((place, text),) = complaints(open_)
    assert place == "host"
    assert f"`bulkhead key add NAME --state-dir {tmp_path}` makes the first one" in text
    file = KeyFile(tmp_path / "keys.json")
    file.add("laptop", KeyTerms(), 1.0)
    # A revoked one keeps everybody out.
    file.revoke("laptop")
    assert complaints(open_) == []
    (caution,) = network_cautions(open_.gateway)
    assert "plain HTTP" in caution
    assert list(network_cautions(GatewaySettings())) == []


def test_a_name_beyond_loopback_needs_keys(tmp_path: Path) -> None:
    assert complaints(settings(tmp_path, allowed_hosts=("localhost", "127.0.0.9", "::1"))) == []
    named = settings(tmp_path, allowed_hosts=("localhost", "mac.tail1234.ts.net"))
    ((place, text),) = complaints(named)
    assert place == "allowed_hosts"
    assert "mac.tail1234.ts.net" in text
    assert f"`bulkhead key add NAME --state-dir {tmp_path}` makes the first one" in text
    KeyFile(tmp_path / "keys.json").add("laptop", KeyTerms(), 1.0)
    assert complaints(named) == []


def test_a_bad_renewal_changes_nothing(tmp_path: Path) -> None:
    paths = write_certificate(tmp_path)
    certificates = Certificates(*paths, tmp_path / "served.crt")
    good = [path.read_bytes() for path in paths]
    paths[1].write_bytes(write_certificate(tmp_path, "other")[1].read_bytes())
    with pytest.raises(CertificateError):
        certificates.renew()
    paths[1].write_bytes(good[1])
    certificates.renew()


def test_served_certificate_is_known_whatever_its_file_has(tmp_path: Path) -> None:
    """From a renewal to the reload a client that trusts the copy gets through."""
    certificate, key = write_certificate(tmp_path)
    certificates = Certificates(certificate, key, tmp_path / "served.crt")

    def reached(trusted: Path) -> bool:
        here, there = socket.socketpair()
        with here, there:
            answering = threading.Thread(target=_shake_hands, args=(certificates.context, there))
            answering.start()
            try:
                trusting(str(trusted)).wrap_socket(here, server_hostname="mac.example").close()
            except ssl.SSLCertVerificationError as error:
                return distrust(error) is None
            finally:
                here.close()
                answering.join()
        return True

    write_certificate(tmp_path)
    assert not reached(certificate)
    assert reached(certificates.served)
    assert b"PRIVATE" not in certificates.served.read_bytes()
    certificates.renew()
    assert reached(certificates.served)
    assert reached(certificate)


def _shake_hands(context: ssl.SSLContext, connection: socket.socket) -> None:
    with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True):
        pass
