"""bulkhead upgrade"""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError
from gateway.cli.local import local_settings
from gateway.cli.options import json_option, reaches_gateway
from gateway.cli.output import printable
from gateway.http.command_bodies import UpgradeAnswer
from gateway.system.state_dir import NextGateway
from gateway.system.state_file import write_state


@click.command("upgrade")
@click.option(
    "--python",
    metavar="PATH",
    help="Interpreter of the next gateway, if the package was installed elsewhere.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="Folder of the gateway that --python is for [BULKHEAD_STATE_DIR].",
)
@json_option
@reaches_gateway
def upgrade_command(
    gateway: GatewayClient, python: str | None, state_dir: Path | None, *, as_json: bool
) -> None:
    """Replace the gateway by one of the version that is installed now.

    Models stay loaded and streams flow on. If the new gateway doesn't come up, the present one
    goes on.
    """
    if python is not None:
        _choose(python, state_dir)
    content = gateway.send("POST", "/admin/v1/upgrade")
    if as_json:
        click.echo(content)
        return
    upgraded = gateway.read(content, UpgradeAnswer)
    before, after = printable(upgraded.version_before), printable(upgraded.version)
    versions = f"version {after}" if before == after else f"version {after} instead of {before}"
    click.echo(f"{versions} serves (pid {upgraded.pid}), after {upgraded.seconds:.1f} s")


def _choose(python: str, named: Path | None) -> None:
    found = shutil.which(python)
    if found is None:
        raise CommandError(f"{printable(python)} is not a program.")
    _, state_dir = local_settings(named)
    # A link says which environment is meant: it isn't followed.
    write_state(state_dir.successor_path, NextGateway(str(Path(found).absolute())))
