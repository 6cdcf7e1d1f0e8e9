"""The certificate that connections are answered with, which may be renewed while they last."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

from gateway.tls.certificate import check, load, new_context


class Certificates:
    """`context` goes on with what it has until `renew` has found something better."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Blocks. Raises CertificateError."""
        self.certificate = certificate
        self._key = key
        self.context: ssl.SSLContext = new_context()
        self.renew()

    def renew(self) -> None:
        """Read the files again. Blocks.

        Raises: CertificateError: they are not good, and nothing has changed.
        """
        check(self.certificate, self._key, time.time())
        # New handshakes take it, and connections that are there keep theirs.
        load(self.context, self.certificate, self._key)
