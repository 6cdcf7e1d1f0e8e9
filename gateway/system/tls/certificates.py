"""The certificate that connections are answered with, which may be renewed while they last."""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path

from gateway.system.state.secret_file import write_secret
from gateway.system.tls.certificate import check, load, new_context

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
