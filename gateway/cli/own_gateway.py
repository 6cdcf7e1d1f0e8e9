"""The gateway that a command runs for itself while no other one runs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from gateway.cli.child_gateway import ChildGateway, end_in_order, serving
from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError, NobodyListensError
from gateway.cli.gateway_access import find_gateway
from gateway.cli.options import names_gateway
from gateway.config.settings import Settings
from gateway.system.state_dir import StateDir


def is_running(gateway: GatewayClient) -> bool:
    """Whether the gateway of this command runs.

    Raises:
        NobodyListensError: the user named a gateway, which doesn't run.
        CommandError: something else answers there.
    """
    try:
        gateway.get("/livez")
    except NobodyListensError:
        if names_gateway():
            raise
        return False
    return True


@contextlib.contextmanager
def own_gateway(
    settings: Settings, state_dir: StateDir, *flags: str
) -> Iterator[tuple[GatewayClient, ChildGateway]]:
    """Run a gateway with the user's configuration and these flags until the context ends.

    Raises:
        CommandError: the gateway doesn't start.
    """
    arguments = ["--state-dir", str(state_dir.path.absolute()), *flags]
    # The gateway has another working folder.
    if configured := os.environ.get("BULKHEAD_CONFIG"):
        arguments += ["--config", str(Path(configured).expanduser().absolute())]
    end_in_order()
    with (
        tempfile.TemporaryDirectory(prefix="bulkhead-") as folder,
        serving(Path(folder) / "gateway.log", *arguments) as child,
    ):
        try:
            address = child.address()
        except CommandError as error:
            raise CommandError(f"{error.message} Its log ends with:\n{child.log_tail()}") from error
        click.echo(
            f"No gateway ran: one serves at {address} until this command ends. `bulkhead serve` "
            "runs one for longer.",
            err=True,
        )
        with find_gateway(None, None, settings, state_dir).client() as client:
            client.ends_with_command = True
            yield client, child
