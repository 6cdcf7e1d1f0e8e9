"""Addresses as clients write them."""

from __future__ import annotations


def url(host: str, port: int) -> str:
    """`http://127.0.0.1:8642`, `http://[::1]:8642`."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
