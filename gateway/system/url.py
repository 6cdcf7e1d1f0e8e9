"""Addresses as clients write them."""

from __future__ import annotations


def url(host: str, port: int, *, tls: bool = False) -> str:
    """`http://127.0.0.1:8642`, `https://[::1]:8642`."""
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
