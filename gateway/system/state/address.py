"""Where the gateway of a state folder is reached, for programs of this machine."""

from __future__ import annotations

from msgspec import Struct

from gateway.system.state.state_dir import StateDir, lock_holder
from gateway.system.state.state_file import read_state, write_state
from gateway.system.url import url


class Address(Struct, frozen=True):
    """`certificate` is a file with the one that the gateway shows now, None for plain HTTP."""

    url: str
    pid: int
    certificate: str | None = None


# Listening on all addresses is no address to go to.
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def near_url(host: str, port: int, *, tls: bool) -> str:
    """How a program on this machine reaches a gateway that listens there."""
    return url(_EVERYWHERE.get(host, host), port, tls=tls)


def write_address(state_dir: StateDir, address: Address) -> None:
    write_state(state_dir.address_path, address)


def running_address(state_dir: StateDir) -> Address | None:
    """That of the gateway that has the folder's lock; None if none has."""
    holder = lock_holder(state_dir.path)
    if holder is None or not state_dir.address_path.exists():
        return None
    address = read_state(state_dir.address_path, Address)
    return address if address is not None and address.pid == holder else None
