"""TLS by certificate files: loaded, renewed while connections last, made where none is. Blocks."""

from __future__ import annotations

import base64
import datetime
import hashlib
import logging
import re
import ssl
import time
from pathlib import Path
from typing import Final

from gateway.system.state_file import read_secret, write_secret

_DAY_S: Final = 86400.0
# Who renews by hand needs some days; programs that do it renew earlier than that.
_SOON_S: Final = 14 * _DAY_S


class CertificateError(ValueError):
    """They can't be served with; the text says why, in a sentence without an end."""


def load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Let new connections have them. Raises CertificateError, and then may have half of them."""
    for path in (certificate, key):
        try:
            path.read_bytes()
        except OSError as error:
            raise CertificateError(f"{path} can't be read: {error.strerror}") from error
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except _PasswordError as error:
        raise CertificateError(
            f"{key} has a password, and nobody is there to type it: keep the key without one, "
            "with mode 0600"
        ) from error
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise CertificateError(f"{key} is not the key of {certificate}") from error
        raise CertificateError(
            f"{certificate} and {key} are no certificate and key in PEM ({error.reason})"
        ) from error


def check(certificate: Path, key: Path, now: float) -> None:
    """Raises: CertificateError: a server that has them would help nobody at this Unix time."""
    load(new_context(), certificate, key)
    begins, ends = validity(certificate)
    if now < begins:
        raise CertificateError(f"{certificate} is not valid before {_day(begins)}")
    if now >= ends:
        raise CertificateError(f"{certificate} expired on {_day(ends)}: renew it")


def ends_soon(certificate: Path, now: float) -> str | None:
    """A sentence if it has to be renewed within days. Raises CertificateError."""
    _, ends = validity(certificate)
    if ends - now >= _SOON_S:
        return None
    days = (ends - now) / _DAY_S
    return f"{certificate} expires on {_day(ends)}, in {days:.1f} days: renew it."


def validity(certificate: Path) -> tuple[float, float]:
    """From when to when the first certificate of a file is valid, as Unix times.

    Raises CertificateError.
    """
    # Slow to import, and most gateways have no certificate.
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError) as error:
        raise CertificateError(f"{certificate} can't be read: {error}") from error
    return found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()


def new_context() -> ssl.SSLContext:
    """For a server: TLS 1.2 and later."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def trusting(certificate: str) -> ssl.SSLContext:
    """For a client that takes this certificate and no other, whatever names it is for.

    Raises: OSError: it can't be read.
    """
    return _trusting_only(ssl.create_default_context(cafile=certificate))


def trusting_this(certificate: bytes) -> ssl.SSLContext:
    """The same, of one in DER."""
    pem = ssl.DER_cert_to_PEM_cert(certificate)
    context = _trusting_only(ssl.create_default_context(cadata=pem))
    # What a certificate authority's should have, this one needn't.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _trusting_only(context: ssl.SSLContext) -> ssl.SSLContext:
    context.check_hostname = False
    # The one that is shown need not be a certificate authority's.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def trusting_anybody() -> ssl.SSLContext:
    """For a client that tells nothing and only asks who is there."""
    # Without the certificates of authorities, which take time to read.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def distrust(error: BaseException) -> str | None:
    """What a client had against the certificate that it was shown, if that is why it failed."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        cause = cause.__cause__ or cause.__context__
    return None


class _PasswordError(Exception):
    pass


def _no_password() -> str:
    raise _PasswordError


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


logger = logging.getLogger(__name__)


class Certificates:
    """`context` goes on with what it has until `renew` has found something better. `served` is a
    copy of the certificate in it, without its key: the file that it came from may be renewed at any
    time, and commands of this machine have to trust what the gateway shows until it reads it again.
    """

    def __init__(self, certificate: Path, key: Path, served: Path) -> None:
        """Blocks. Raises CertificateError."""
        self.served = served
        self._certificate = certificate
        self._key = key
        self.context: ssl.SSLContext = new_context()
        self.renew()

    def renew(self) -> None:
        """Read the files again. Blocks.

        Raises: CertificateError: they are not good, and nothing has changed.
        """
        check(self._certificate, self._key, time.time())
        # New handshakes take it, and connections that are there keep theirs.
        load(self.context, self._certificate, self._key)
        try:
            write_secret(self.served, self._certificate.read_bytes())
        except OSError as error:
            logger.warning(
                "Commands of this machine can't be told which certificate to trust: %s", error
            )


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
