"""Certificates that are known by their fingerprints."""

from __future__ import annotations

import base64
import stat
import time
from pathlib import Path

import pytest

from gateway.system.tls import (
    check,
    ensured_certificate,
    fingerprint,
    fingerprint_of_file,
    parse_fingerprint,
)


def test_it_is_made_once_and_can_be_served_with(tmp_path: Path):
    certificate, key = tmp_path / "agent.crt", tmp_path / "agent-tls.key"
    ensured_certificate(certificate, key, "a" * 100)
    check(certificate, key, time.time())
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    first = fingerprint_of_file(certificate)
    ensured_certificate(certificate, key, "other")
    assert fingerprint_of_file(certificate) == first
    assert parse_fingerprint(first) == first


def test_a_key_that_others_may_read_is_not_used(tmp_path: Path):
    certificate, key = tmp_path / "agent.crt", tmp_path / "agent-tls.key"
    ensured_certificate(certificate, key, "mac")
    key.chmod(0o644)
    with pytest.raises(PermissionError, match="others have rights"):
        ensured_certificate(certificate, key, "mac")


def test_openssls_digits_are_the_same_fingerprint():
    written = fingerprint(b"certificate")
    digits = base64.b64decode(written.removeprefix("SHA256:") + "=").hex()
    colons = ":".join(digits[at : at + 2] for at in range(0, 64, 2)).upper()
    assert parse_fingerprint(digits) == parse_fingerprint(colons) == written
    assert parse_fingerprint(f" sha256:{digits}\n") == written
    assert parse_fingerprint(written.removeprefix("SHA256:")) == written


@pytest.mark.parametrize("text", ["", "SHA256:", "0" * 63, "g" * 64, "0" * 66, "SHA1:abc"])
def test_other_texts_are_no_fingerprint(text: str):
    with pytest.raises(ValueError, match="no SHA-256 fingerprint"):
        parse_fingerprint(text)
