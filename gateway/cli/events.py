"""bulkhead events"""

from __future__ import annotations

import time
from typing import Any, Final

import click
import msgspec

from gateway.cli.client import GatewayClient
from gateway.cli.model_names import complete_model
from gateway.cli.options import reaches_gateway
from gateway.cli.printable import printable
from gateway.cli.server_sent_events import ServerSentEvent

# These have a place of their own in a line.
_PLACED: Final = ("id", "at", "event", "model")


@click.command("events")
@click.option("-f", "--follow", is_flag=True, help="Go on with new events until Ctrl-C.")
@click.option(
    "-n",
    "--recent",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    help="How many of the last events to begin with.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.option("--model", shell_complete=complete_model, help="Only events of this model.")
@reaches_gateway
def command(
    gateway: GatewayClient, *, follow: bool, recent: int, as_json: bool, model: str | None
) -> None:
    """Print what happened to models and workers, such as starts, ends and their causes."""
    # Of its present id, also for an alias; one that isn't there is an error.
    model = None if model is None else gateway.model(model).id
    with gateway.events(recent, follow=follow) as events:
        for event in events:
            if event.kind == "comment":
                continue
            fields = msgspec.json.decode(event.data)
            if model is None or fields.get("model") == model:
                click.echo(event.data if as_json else _line(event, fields))


def _line(event: ServerSentEvent, fields: dict[str, Any]) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(fields["at"]))
    pairs = " ".join(
        f"{key}={value}"
        for key, value in fields.items()
        if key not in _PLACED and value is not None
    )
    return printable(f"{at}  {fields['model'] or '-'}  {event.kind}  {pairs}").replace("\n", " ")
