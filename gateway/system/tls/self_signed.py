"""A certificate that vouches for itself, for those who know it by its fingerprint. Blocks."""

from __future__ import annotations

import base64
import datetime
import hashlib
import re
import ssl
from pathlib import Path
from typing import Final

from gateway.system.state.secret_file import read_secret, write_secret
from gateway.system.tls.certificate import CertificateError

# Nobody renews it: who pins it would have to be told.
_VALID_DAYS: Final = 365 * 30
_PREFIX: Final = "SHA256:"
_BASE64: Final = re.compile(r"(?:SHA256:)?[A-Za-z0-9+/]{43}=?")
_DIGITS: Final = re.compile(r"(?:SHA256:)?((?:[0-9a-f]{2}:?){31}[0-9a-f]{2})", re.IGNORECASE)


def ensured_certificate(certificate: Path, key: Path, name: str) -> None:
    """Make both unless they are there; `name` is the host's.

    Raises: OSError: they can't be written, or others may read the key.
    """
    if certificate.exists() and key.exists():
        read_secret(key)
        return
    # Slow to import, and needed once.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    secret = ec.generate_private_key(ec.SECP256R1())
    # A common name has 64 characters at most (RFC 5280, ub-common-name).
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64] or "bulkhead")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        # The other host's clock may be behind.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        .sign(secret, hashes.SHA256())
    )
    write_secret(
        key,
        secret.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
    write_secret(certificate, made.public_bytes(serialization.Encoding.PEM))


def fingerprint_of_file(certificate: Path) -> str:
    """Of the first one in a PEM file. Raises: CertificateError."""
    try:
        text = certificate.read_text("ascii")
        first = text[: text.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----")]
        return fingerprint(ssl.PEM_cert_to_DER_cert(first[first.index("-----BEGIN CERT") :]))
    except (OSError, ValueError) as error:
        raise CertificateError(f"{certificate} can't be read: {error}") from error


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate in DER, as OpenSSH writes fingerprints."""
    return _written(hashlib.sha256(certificate).digest())


def parse_fingerprint(text: str) -> str:
    """One as `fingerprint` writes it, of such a one or of OpenSSL's hexadecimal digits.

    Raises: ValueError: it is none.
    """
    text = text.strip()
    if _BASE64.fullmatch(text) is not None:
        return _PREFIX + text.removeprefix(_PREFIX).rstrip("=")
    if (digits := _DIGITS.fullmatch(text)) is not None:
        return _written(bytes.fromhex(digits[1].replace(":", "")))
    raise ValueError(
        f"{text[:100]!r} is no SHA-256 fingerprint: SHA256: and 43 characters, or 64 hexadecimal "
        "digits"
    )


def _written(digest: bytes) -> str:
    return _PREFIX + base64.b64encode(digest).decode("ascii").rstrip("=")
