"""bulkhead why"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import click
import msgspec
from msgspec import Struct

from gateway.cli.client import GatewayClient
from gateway.cli.failure import NoSuchRequestError, NotFoundError
from gateway.cli.options import json_option, reaches_gateway
from gateway.cli.output import (
    Column,
    ago,
    count,
    duration,
    one_line,
    print_json,
    print_table,
    printable,
    stdout_console,
    table_of,
)
from gateway.why.answer import PromptChange, Why
from gateway.why.divergence import Excerpt

_LISTED: Final = 20


class _Finished(Struct):
    """A request that has finished, as far as the list shows it."""

    id: str
    model: str | None
    ended_at: float
    prompt_tokens: int | None
    cached_tokens: int | None
    first_token_s: float | None


class _FinishedList(Struct):
    requests: list[_Finished]


@click.command("why")
@click.argument("request", metavar="[REQUEST]", required=False)
@json_option
@reaches_gateway
def why_command(gateway: GatewayClient, *, request: str | None, as_json: bool) -> None:
    """Say why an answer began late, and what of its prompt was new.

    REQUEST is the x-request-id of an answer, or the id in its body. Without REQUEST the last
    requests are listed. The output has parts of the prompt.
    """
    if request is None:
        _list(gateway, as_json=as_json)
        return
    try:
        content = gateway.get(f"/admin/v1/requests/{quote(request, safe='/')}/why")
    except NotFoundError as error:
        raise NoSuchRequestError(error.message) from error
    if as_json:
        print_json(msgspec.json.decode(content))
        return
    for line in _lines(gateway.read(content, Why), time.time()):
        click.echo(printable(line))


def _list(gateway: GatewayClient, *, as_json: bool) -> None:
    content = gateway.get("/admin/v1/requests/finished", query={"recent": _LISTED})
    if as_json:
        print_json(msgspec.json.decode(content))
        return
    listed = gateway.read(content, _FinishedList).requests
    if not listed:
        click.echo("No request has finished since the gateway's start.")
        return
    now = time.time()
    columns: list[Column[_Finished]] = [
        Column("request", lambda row: one_line(row.id), "word"),
        Column("model", lambda row: one_line(row.model or "-"), "name"),
        Column("ended", lambda row: ago(row.ended_at, now), "word"),
        Column("prompt", lambda row: count(row.prompt_tokens)),
        Column("found", lambda row: count(row.cached_tokens)),
        Column("first token", lambda row: _seconds(row.first_token_s)),
    ]
    print_table(stdout_console(), table_of(listed, columns))


def _lines(why: Why, now: float) -> Iterator[str]:
    key = "" if why.key is None else f", key {why.key}"
    yield f"{why.id}: {why.model}{key}, {ago(why.at, now)}"
    yield f"prompt   {_found(why)}"
    yield f"cause    {why.sentence}"
    if why.advice is not None:
        yield f"advice   {why.advice}"
    yield f"wait     {why.wait.sentence}"
    parts = {part: f"{seconds:.2f} s" for part, seconds in why.wait.parts_s.items()}
    shown = [f"{part} {seconds}" for part, seconds in parts.items() if seconds != "0.00 s"]
    if len(shown) > 1:
        yield f"         {', '.join(shown)}"
    if (earlier := why.earlier) is not None:
        before = duration(max(0.0, why.at - earlier.at))
        yield f"earlier  {earlier.id}, {before} before; both prompts begin with " + (
            f"{earlier.shared_tokens:,} tokens"
        )
    for change in why.changes:
        yield from _of_change(change)


def _found(why: Why) -> str:
    if why.cached_tokens is None:
        return f"{why.prompt_tokens:,} tokens" if why.prompt_tokens else "not read yet"
    new = why.prompt_tokens - why.cached_tokens
    return f"{why.prompt_tokens:,} tokens: {why.cached_tokens:,} found, {new:,} computed"


def _of_change(change: PromptChange) -> Iterator[str]:
    place = "" if change.at is None else f", character {change.at:,}"
    if change.within:
        place += f" to {(change.at or 0) + change.within:,}"
    yield f"change   {change.section}{place}: {change.sentence}"
    if change.at is not None:
        yield f"         before  {_excerpt(change.old)}"
        yield f"         now     {_excerpt(change.new)}"


def _excerpt(excerpt: Excerpt | None) -> str:
    """The text around the place where two texts part, in brackets from there on."""
    if excerpt is None:
        return "(not remembered)"
    return one_line(f"…{excerpt.before}") + f"[{one_line(excerpt.behind)}]…"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"
