"""A certificate and its key, as files in PEM: whether they can be served with. Blocks."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Final

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
