"""The gateway of a state folder, which a command may name instead of an address."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from gateway.cli.client import GatewayClient
from gateway.cli.local import access, local_settings
from gateway.system.state_dir import running_address

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
