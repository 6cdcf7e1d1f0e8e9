"""bulkhead search"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Final

import click
import httpx
from rich.table import Table

from gateway.cli.child_gateway import asks_gateway
from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError, HubAwayError
from gateway.cli.models import models_on_disks
from gateway.cli.output import (
    UNKNOWN,
    Column,
    ago,
    count,
    print_json,
    print_table,
    printable,
    size,
    stderr_console,
    stdout_console,
    table_of,
)
from gateway.library.findings import Findings, HubFinding
from gateway.system.notation import format_size

# The gateway's own deadline of a search is shorter.
_ANSWER: Final = httpx.Timeout(60.0, connect=5.0)


@click.command("search")
@click.argument("words", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@asks_gateway
def search_command(gateway: GatewayClient, *, words: tuple[str, ...], as_json: bool) -> None:
    """Search the Hugging Face hub for models.

    WORDS are parts of a name, such as qwen3 4b. Models for MLX come first, then the newest and most
    used. "fits" says whether a model fits into memory now, after other models are unloaded, or
    never; it is guessed by the size of the weights, and a pull computes it. Without WORDS, the list
    has well-known models, and nothing is fetched.
    """
    text = " ".join(words)
    if as_json:
        print_json(find(gateway, text))
        return
    with rest_shown(gateway):
        findings = find(gateway, text)
    if not findings.results:
        raise CommandError(f"The hub has no model for {findings.query!r}: try fewer words.")
    if findings.dated is not None:
        click.echo(f"{about_well_known(findings)}\n")
    print_table(stdout_console(), table(findings.results))


def find(gateway: GatewayClient, text: str) -> Findings:
    """Search the hub. Raises: HubAwayError: the hub can't be searched."""
    return gateway.read(gateway.get("/admin/v1/search", _ANSWER, {"q": text}), Findings)


@contextlib.contextmanager
def rest_shown(gateway: GatewayClient) -> Iterator[None]:
    """If the hub can't be asked, end the command with what there is without it: on stderr, after
    the reason.
    """
    try:
        yield
    except HubAwayError as error:
        error.show()
        known = find(gateway, "")
        click.echo(f"\n{about_well_known(known)}\n", err=True)
        print_table(stderr_console(), table(known.results))
        here = ", ".join(model.ids[0] for model in models_on_disks(gateway) if model.ids)
        models = f"On this machine: {here}" if here else "There is no model on this machine"
        click.echo(printable(f"\n{models}."), err=True)
        raise click.exceptions.Exit(error.exit_code) from error


def about_well_known(findings: Findings) -> str:
    return (
        f"Well-known models, by a list of {findings.dated}. {format_size(findings.possible_bytes)} "
        "of memory can be had for one; `bulkhead search WORDS` asks the hub for others."
    )


def table(findings: Iterable[HubFinding], *, numbered: bool = False) -> Table:
    now = time.time()
    numbers = itertools.count(1)
    number = [Column[HubFinding]("", lambda _: str(next(numbers)))] if numbered else []
    columns: list[Column[HubFinding]] = [
        *number,
        Column("model", lambda finding: printable(finding.repository), "name"),
        Column("size", lambda finding: size(finding.weight_bytes)),
        Column("fits", lambda finding: finding.fits or UNKNOWN, "word"),
        Column("downloads", lambda finding: count(finding.downloads)),
        Column("changed", lambda finding: _changed(finding, now), "word"),
        Column("notes", lambda finding: printable("; ".join(_notes(finding))) or UNKNOWN, "name"),
    ]
    return table_of(findings, columns)


def _changed(finding: HubFinding, now: float) -> str:
    return UNKNOWN if finding.changed_at is None else ago(finding.changed_at, now)


def _notes(finding: HubFinding) -> Iterable[str]:
    if finding.served_as is not None:
        yield f"served as {finding.served_as}"
    if finding.problem is not None:
        yield finding.problem
    if not finding.mlx:
        yield "not made for MLX"
    if finding.embeds:
        yield "embeddings"
    if finding.gated:
        yield "gated"
