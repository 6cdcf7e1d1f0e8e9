"""The gateway that a command speaks to: its address, its certificate and the admin key."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
from msgspec import Struct

from gateway.access.key_file import admin_key
from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError
from gateway.config.layers import ConfigError
from gateway.config.read import read_settings
from gateway.config.settings import Flags, Settings
from gateway.system.state_dir import Address, StateDir, StateDirError, near_url, running_address
from gateway.system.tls import trusting

# Hosts that count as one host. At other loopback addresses another program may listen.
_ITSELF: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class GatewayAccess(Struct, frozen=True):
    """The address of a gateway, and the admin key for it. `trust` is as for `GatewayClient`."""

    url: str
    key: str | None
    trust: ssl.SSLContext | None

    def client(self) -> GatewayClient:
        return GatewayClient(self.url, self.key, self.trust)


def local_settings(state_dir: Path | None) -> tuple[Settings, StateDir]:
    """The settings and the state folder that `serve` would use. If the configuration has mistakes,
    the settings are the defaults, and the folder is `state_dir`, BULKHEAD_STATE_DIR or the default.
    """
    try:
        settings = read_settings(Flags(state_dir=state_dir), os.environ)
        named = settings.gateway.state_dir
    except ConfigError:
        settings = Settings()
        named = os.environ.get("BULKHEAD_STATE_DIR") if state_dir is None else str(state_dir)
    return settings, StateDir.of(named)


def find_gateway(
    url: str | None, key: str | None, settings: Settings, state_dir: StateDir
) -> GatewayAccess:
    """Access to the gateway at `url`. If `url` is None: to the gateway that runs with the state
    folder, and if none does, to the address in the settings. Only the gateway that runs with the
    folder gets the folder's admin key. It is reached at its own address, also if `url` has another
    name of loopback: there another program may listen at the same port.
    """
    address = address_of(state_dir)
    if address is None or (url is not None and not _same(url, address.url)):
        server = settings.gateway
        return GatewayAccess(
            url or near_url(server.host, server.port, tls=server.tls),
            key,
            None,
        )
    return GatewayAccess(
        address.url,
        key or admin_key(state_dir.admin_key_path),
        None if address.certificate is None else _trusting(address.certificate),
    )


def address_of(state_dir: StateDir) -> Address | None:
    """As `running_address`. Raises: CommandError."""
    try:
        return running_address(state_dir)
    except StateDirError as error:
        raise CommandError(str(error)) from error


def _trusting(certificate: str) -> ssl.SSLContext | None:
    try:
        return trusting(certificate)
    except OSError:
        return None


def _same(url: str, other: str) -> bool:
    """Whether two URLs have the same scheme, port and host. Hosts in `_ITSELF` count as one."""
    one, two = httpx.URL(url), httpx.URL(other)
    if (one.scheme, one.port) != (two.scheme, two.port):
        return False
    return one.host == two.host or {one.host, two.host} <= _ITSELF


@contextlib.contextmanager
def local_gateway(state_dir: Path | None) -> Iterator[GatewayClient | None]:
    """A client of the gateway that runs with the state folder; None if no gateway does."""
    settings, folder = local_settings(state_dir)
    if address_of(folder) is None:
        yield None
        return
    with find_gateway(None, None, settings, folder).client() as client:
        yield client
