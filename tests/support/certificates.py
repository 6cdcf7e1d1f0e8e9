"""Certificates of nobody, for gateways of tests."""

from __future__ import annotations

import datetime
import functools
import ipaddress
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def write_certificate(
    folder: Path, name: str = "tls", *, begins_days: float = -1, ends_days: float = 90
) -> tuple[Path, Path]:
    """A self-signed certificate and its key in PEM; both may be there already."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mac.example")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("mac.example"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=min(begins_days, ends_days - 1)))
        .not_valid_after(now + datetime.timedelta(days=ends_days))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / f"{name}.crt", folder / f"{name}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


@functools.cache
def lasting_certificate() -> tuple[str, str]:
    """One for all tests of a process."""
    certificate, key = write_certificate(Path(tempfile.mkdtemp(prefix="bh-tls-")))
    return str(certificate), str(key)
