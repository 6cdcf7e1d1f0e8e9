"""bulkhead run"""

from __future__ import annotations

import click

from gateway.cli.chat import chat
from gateway.cli.client import GatewayClient
from gateway.cli.completion import complete_model
from gateway.cli.conversation import Conversation, Parameters
from gateway.cli.named_model import choose, present, serving
from gateway.cli.options import reaches_gateway
from gateway.cli.orders import carried_out
from gateway.http.wire.command_bodies import OrderOptions


@click.command("run")
@click.argument("name", nargs=-1, metavar="[NAME]...", shell_complete=complete_model)
@click.option("--system", metavar="TEXT", help="System message: instructions for the model.")
@click.option("--force", is_flag=True, help="Pull even a model that won't fit into memory.")
@reaches_gateway
def run_command(
    gateway: GatewayClient, *, name: tuple[str, ...], system: str | None, force: bool
) -> None:
    """Chat with a model; pull and load it first if it is missing.

    NAME is an id, a repository, a folder, or parts of a name, such as qwen3 4b. Models on this
    machine and of upstreams come before those of the hub. If several are meant, a terminal asks;
    otherwise they are listed, with exit status 2. Without NAME, these models are meant, or
    well-known ones if there are none.

    If no gateway runs, one is started for this chat, and ends with it. The chat is that of
    `bulkhead chat`.
    """
    choice = choose(gateway, " ".join(name), "bulkhead run NAME")
    with serving(gateway, choice) as (client, _):
        model = present(client, choice, force=force)
        _load(client, model)
        chat(client, Conversation(client, model, system, Parameters()))


def _load(gateway: GatewayClient, name: str) -> None:
    """Load the model. That of an upstream is loaded there, by the first question."""
    if gateway.model(name).is_upstreams:
        return
    carried_out(gateway, "load", name, OrderOptions())
