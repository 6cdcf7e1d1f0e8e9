"""TLS certificates in files: loading, renewal while connections are open, self-signed ones, and
fingerprints. Functions that take a path block.
"""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path
from typing import Final

from gateway.system.state_file import write_secret

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
        parsed = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError) as error:
        raise CertificateError(f"{certificate} can't be read: {error}") from error
    return parsed.not_valid_before_utc.timestamp(), parsed.not_valid_after_utc.timestamp()


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
    context = ssl.create_default_context(cafile=certificate)
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
