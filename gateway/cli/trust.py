"""Whose certificates commands take, of gateways that aren't this account's."""

from __future__ import annotations

import ssl

import httpx


def trusting_system() -> ssl.SSLContext:
    """For a client that takes what this system trusts, or the file in SSL_CERT_FILE, and the
    authorities that come with httpx, as Python on macOS may find none of the system's.
    """
    context = httpx.create_ssl_context()
    context.load_default_certs()
    # Authorities at home seldom have everything that theirs should have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
