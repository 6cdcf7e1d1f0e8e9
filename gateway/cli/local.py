"""What a command knows of the gateway of this machine: its folder, its address, its admin key."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import httpx
from msgspec import Struct

from gateway.access.key_file import admin_key
from gateway.cli.client import GatewayClient
from gateway.config.layers import ConfigError
from gateway.config.read import read_settings
from gateway.config.settings import Flags, Settings
from gateway.system.state_dir import StateDir, default_state_dir, near_url, running_address
from gateway.system.tls import trusting

# Of one address. At others of loopback somebody else may listen.
_ITSELF: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Access(Struct, frozen=True):
    """How to reach a gateway. `trust` is what its certificate is checked with, None for what
    everybody trusts.
    """

    url: str
    key: str | None
    trust: ssl.SSLContext | None


def local_settings(state_dir: Path | None) -> tuple[Settings, StateDir]:
    """What serve would use. A folder can be looked at whatever is wrong with the configuration."""
    try:
        settings = read_settings(Flags(state_dir=state_dir), os.environ)
        named = settings.gateway.state_dir
    except ConfigError:
        settings = Settings()
        named = os.environ.get("BULKHEAD_STATE_DIR") if state_dir is None else str(state_dir)
    return settings, StateDir(Path(named or default_state_dir()))


def access(url: str | None, key: str | None, settings: Settings, state_dir: StateDir) -> Access:
    """To the gateway at an address, else to the one that uses the folder, else to where the
    settings would have one. The admin key of the folder goes to the one that uses it and to no
    other: whoever else has taken its port must not get it.
    """
    address = running_address(state_dir)
    if address is None or (url is not None and not _same(url, address.url)):
        here = settings.gateway
        return Access(url or near_url(here.host, here.port, tls=here.tls), key, None)
    return Access(
        url or address.url,
        key or admin_key(state_dir.admin_key_path),
        None if address.certificate is None else _trusting(address.certificate),
    )


def _trusting(certificate: str) -> ssl.SSLContext | None:
    try:
        return trusting(certificate)
    except OSError:
        return None


def _same(url: str, other: str) -> bool:
    """Whether two addresses are of one gateway, as far as this machine's names go."""
    one, two = httpx.URL(url), httpx.URL(other)
    if (one.scheme, one.port) != (two.scheme, two.port):
        return False
    return one.host == two.host or {one.host, two.host} <= _ITSELF


state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="The gateway's state folder, if it isn't the one that serve would use.",
)


@contextlib.contextmanager
def own_gateway(state_dir: Path | None) -> Iterator[GatewayClient | None]:
    """The one that uses the state folder; None: none does."""
    settings, folder = local_settings(state_dir)
    if running_address(folder) is None:
        yield None
        return
    near = access(None, None, settings, folder)
    with GatewayClient(near.url, near.key, near.trust) as client:
        yield client
