"""bulkhead page"""

from __future__ import annotations

import html
import os
import sys
import webbrowser
from pathlib import Path
from typing import Final

import click

from gateway.cli.client import ANSWER, GatewayClient
from gateway.cli.gateway_access import local_settings
from gateway.cli.options import reaches_gateway
from gateway.http.wire.command_bodies import PageCode
from gateway.system.state_file import make_folder, write_secret

_CODES: Final = "/admin/v1/page/codes"


@click.command("page")
@reaches_gateway
def page_command(gateway: GatewayClient) -> None:
    """Open the operator's page in a browser, signed in.

    The address is printed, too: over ssh, or without a browser here, open it by hand. With API keys
    it has a code that works once, within a minute.
    """
    page_code = gateway.read(gateway.send("POST", _CODES, timeout=ANSWER), PageCode)
    address = f"{gateway.url}/ui"
    if page_code.code is not None:
        address += f"#code={page_code.code}"
    opened = _has_screen() and _open(address, secret=page_code.code is not None)
    within = "" if page_code.code is None else f" once, within {page_code.expires_in_s:.0f} s"
    sentence = (
        "The browser opens the page. This address opens it" if opened else "Open this address"
    )
    click.echo(f"{sentence}{within}:", err=True)
    click.echo(address)


def _has_screen() -> bool:
    """Whether a browser that opens here is seen by who has typed the command."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform == "darwin" or any(map(os.environ.get, screens))


def _open(address: str, *, secret: bool) -> bool:
    """Open an address in the browser. Every account can see the arguments of a browser, so it gets
    a secret address in a file that leads there, which only this account may read.
    """
    try:
        opens = _file_to(address).as_uri() if secret else address
        return webbrowser.open(opens)
    except (OSError, webbrowser.Error):
        return False


def _file_to(address: str) -> Path:
    """Raises OSError."""
    _, folder = local_settings(None)
    make_folder(folder.path)
    leads = f'<meta http-equiv="refresh" content="0; url={html.escape(address)}">'
    text = f'<!doctype html><meta charset="utf-8"><title>Bulkhead</title>{leads}\n'
    write_secret(folder.page_path, text.encode())
    return folder.page_path
