"""Addresses of sockets, as long as the system allows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.message_base import (
    MAX_SOCKET_PATH_BYTES,
    EndpointError,
    endpoint,
)


def _path_of(length_bytes: int, character: str = "x") -> Path:
    name = character * ((length_bytes - 1) // len(character.encode()))
    return Path("/" + name + "x" * (length_bytes - 1 - len(name.encode())))


def test_the_longest_path_is_taken():
    path = _path_of(MAX_SOCKET_PATH_BYTES)
    assert endpoint(path) == f"ipc://{path}"


@pytest.mark.parametrize("character", ["x", "ü", "漢"])
def test_a_longer_path_is_refused_with_the_numbers(character: str):
    path = _path_of(MAX_SOCKET_PATH_BYTES + 1, character)
    assert len(os.fsencode(path)) == MAX_SOCKET_PATH_BYTES + 1
    with pytest.raises(EndpointError) as raised:
        endpoint(path)
    assert f"{MAX_SOCKET_PATH_BYTES + 1} bytes" in str(raised.value)
    assert f"allows {MAX_SOCKET_PATH_BYTES}" in str(raised.value)
    assert str(path) in str(raised.value)
