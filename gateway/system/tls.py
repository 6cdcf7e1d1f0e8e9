"""TLS certificates in files: loading, renewal while connections are open, self-signed ones, and
fingerprints. Functions that take a path block.
"""

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
# The operator is warned this long before the end: time enough for a renewal by hand. Programs
# renew certificates earlier.
_SOON_S: Final = 14 * _DAY_S


class CertificateError(ValueError):
    """The certificate or its key can't be used. The text is a sentence without a full stop."""


def load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Use the certificate and its key for new connections.

    Raises: CertificateError; then the context may have only one of the two.
    """
    for path in (certificate, key):
        try:
            path.read_bytes()
        except OSError as error:
            raise CertificateError(f"{path} can't be read: {error.strerror}") from error
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except _PasswordError as error:
        raise CertificateError(
            f"{key} has a password, which can't be typed here: keep the key without one, with mode "
            "0600"
        ) from error
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise CertificateError(f"{key} is not the key of {certificate}") from error
        raise CertificateError(
            f"{certificate} and {key} are no certificate and key in PEM ({error.reason})"
        ) from error


def check(certificate: Path, key: Path, now: float) -> None:
    """Raises: CertificateError: the files can't be used, or are not valid at `now`."""
    load(new_context(), certificate, key)
    begins, ends = validity(certificate)
    if now < begins:
        raise CertificateError(f"{certificate} is not valid before {_day(begins)}")
    if now >= ends:
        raise CertificateError(f"{certificate} expired on {_day(ends)}: renew it")


def ends_soon(certificate: Path, now: float) -> str | None:
    """A sentence if the certificate expires within 14 days, else None. Raises CertificateError."""
    _, ends = validity(certificate)
    if ends - now >= _SOON_S:
        return None
    days = (ends - now) / _DAY_S
    return f"{certificate} expires on {_day(ends)}, in {days:.1f} days: renew it."


def validity(certificate: Path) -> tuple[float, float]:
    """The first and the last Unix time at which the first certificate of a file is valid.

    Raises CertificateError.
    """
    # cryptography is slow to import, and most gateways have no certificate.
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError) as error:
        raise CertificateError(f"{certificate} can't be read: {error}") from error
    return found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()


def new_context() -> ssl.SSLContext:
    """A server's context, for TLS 1.2 and later."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def trusting(certificate: str) -> ssl.SSLContext:
    """A client's context that trusts only the certificate in this file, whatever names it has.

    Raises: OSError: the file can't be read.
    """
    return _trusting_only(ssl.create_default_context(cafile=certificate))


def trusting_this(certificate: bytes) -> ssl.SSLContext:
    """A client's context that trusts only this certificate, in DER, whatever names it has."""
    pem = ssl.DER_cert_to_PEM_cert(certificate)
    context = _trusting_only(ssl.create_default_context(cadata=pem))
    # The strict rules are for certificates of authorities, not for a self-signed one.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _trusting_only(context: ssl.SSLContext) -> ssl.SSLContext:
    context.check_hostname = False
    # The trusted certificate need not be an authority's.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def trusting_system() -> ssl.SSLContext:
    """A TLS context for clients. It trusts the authorities that Python finds on this system, and
    those in SSL_CERT_FILE or SSL_CERT_DIR. Without these variables it also trusts the authorities
    that httpx brings along, since Python on macOS may find none of the system's.
    """
    # httpx is slow to import, and most gateways have no client of it.
    import httpx

    context = httpx.create_ssl_context()
    context.load_default_certs()
    # Certificates of private authorities seldom have all fields that a strict check demands.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def trusting_signer(certificate: str) -> ssl.SSLContext:
    """A client's context that trusts the certificate in this file, and those that it has signed, if
    they have the server's name.

    Raises: OSError: the file can't be read, or holds none.
    """
    context = ssl.create_default_context(cafile=certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def trusting_anybody() -> ssl.SSLContext:
    """A client's context that trusts every server, for requests without secrets."""
    # ssl.create_default_context would read the certificates of authorities, which takes time.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def distrust(error: BaseException) -> str | None:
    """Why a client refused the server's certificate; None if the error is another one."""
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
    """A certificate with its key. `context` keeps the present pair until `renew` has read a valid
    new pair. `served` is the path of a copy of the certificate in use, without its key. The
    operator may replace the original at any time, but commands on this machine must trust the
    certificate that the gateway shows.
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

        Raises: CertificateError: the files can't be used. The present pair stays.
        """
        check(self._certificate, self._key, time.time())
        # New handshakes use the new certificate. Open connections keep theirs.
        load(self.context, self._certificate, self._key)
        try:
            write_secret(self.served, self._certificate.read_bytes())
        except OSError as error:
            logger.warning(
                "Commands of this machine can't be told which certificate to trust: %s", error
            )


# An agent's certificate is never renewed: gateways know it by its fingerprint.
_VALID_DAYS: Final = 365 * 30
_PREFIX: Final = "SHA256:"
_BASE64: Final = re.compile(r"(?:SHA256:)?[A-Za-z0-9+/]{43}=?")
_DIGITS: Final = re.compile(r"(?:SHA256:)?((?:[0-9a-f]{2}:?){31}[0-9a-f]{2})", re.IGNORECASE)


def ensured_certificate(certificate: Path, key: Path, name: str) -> None:
    """Make a self-signed certificate and its key unless both exist. `name` is the host's name.

    Raises: OSError: the files can't be written, or other accounts may read the key.
    """
    if certificate.exists() and key.exists():
        read_secret(key)
        return
    # cryptography is slow to import, and needed only once.
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
    """The fingerprint of the first certificate in a PEM file. Raises: CertificateError."""
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
    """A fingerprint as `fingerprint` writes it, from that form or from hexadecimal digits.

    Raises: ValueError: the text is no fingerprint.
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
