"""bulkhead key and usage"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click
import msgspec
from rich.table import Table

from gateway.access.api_key import (
    LARGEST_SHARE,
    LATEST_EXPIRY,
    KeyBody,
    KeyList,
    KeyTerms,
    NewKey,
)
from gateway.access.caller import stands_for
from gateway.access.key_file import KeyFile, KeyFileError
from gateway.access.limits import Counts, KeyUsage, UsageList
from gateway.cli import UncutGroup
from gateway.cli.client import ANSWER, FOLDED, GatewayClient
from gateway.cli.failure import CommandError, NobodyListensError, NoSuchModelError
from gateway.cli.gateway_access import local_settings, own_gateway
from gateway.cli.options import json_option, names_gateway, reaches_gateway, state_dir_option
from gateway.cli.output import new_table, print_json, print_table, stdout_console
from gateway.system.notation import nearest_model, parse_time, suggestion

_KEYS: Final = "/admin/v1/keys"


@click.group("key", cls=UncutGroup)
def key_command() -> None:
    """Make, list and revoke API keys.

    Keys are kept in the gateway's state folder, so the gateway needn't run. With --url the keys of
    that gateway are meant.
    """


def _check_expires(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> float | None:
    """The Unix time at which the key expires."""
    if text is None:
        return None
    try:
        at = time.time() + parse_time(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            raise click.BadParameter(
                f"{text!r} is neither a time from now such as 12h or 90d, nor a date such as "
                "2027-01-31."
            ) from None
    if at <= time.time():
        raise click.BadParameter(f"{text!r} is in the past.")
    if at > LATEST_EXPIRY:
        raise click.BadParameter(
            f"{text!r} is beyond the year 9999: leave --expires out for a key that never expires."
        )
    return at


def _check_models(
    _context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...] | None:
    found: dict[str, None] = {}
    for text in texts:
        names = dict.fromkeys(filter(None, (each.strip() for each in text.split(","))))
        if not names:
            # An empty list would allow all models.
            raise click.BadParameter(
                f"{text!r} names no model: name one, or leave --models out for all of them."
            )
        found |= names
    return tuple(found) or None


@key_command.command("add")
@click.argument("name")
@click.option(
    "--models",
    multiple=True,
    callback=_check_models,
    metavar="MODEL,...",
    help="The only models that the key may use, by id or alias; box/* stands for all of an "
    "upstream. Repeatable.",
)
@click.option(
    "--priority",
    type=click.IntRange(-1000, 1000),
    help="The highest priority of its requests [the model's own].",
)
@click.option("--rpm", type=click.IntRange(1), help="Requests a minute.")
@click.option("--tpm", type=click.IntRange(1), help="Tokens a minute, of prompts and answers.")
@click.option("--concurrent", type=click.IntRange(1), help="Answers at once.")
@click.option(
    "--share",
    type=click.IntRange(1, LARGEST_SHARE),
    help="Its weight while several keys want a model [1].",
)
@click.option(
    "--expires",
    "expires_at",
    callback=_check_expires,
    metavar="TIME",
    help="When it ends: 90d, 12h, or a date.",
)
@state_dir_option
@reaches_gateway
def add(gateway: GatewayClient, /, *, name: str, state_dir: Path | None, **terms: Any) -> None:
    """Make an API key and print it. It can't be shown again. A file or a pipe gets the key alone.

    Clients send it as `Authorization: Bearer KEY` or `x-api-key: KEY`. Without options the key may
    use every model without limits.
    """
    new = NewKey(name=name, **terms)
    first = False
    if names_gateway() and state_dir is None:
        _warn_of_unknown(gateway, new.models or ())
        secret = gateway.read(gateway.send("POST", _KEYS, new, ANSWER), KeyBody).key
    else:
        with own_gateway(state_dir) as own:
            _warn_of_unknown(own, new.models or ())
        with _own_file(state_dir) as file:
            first = not file.read()
            _, secret = file.add(name, KeyTerms(**terms), time.time())
    if first:
        click.echo(
            "From now on requests need a key. Commands of this account find the admin key in the "
            "state folder by themselves.",
            err=True,
        )
    keep = "Keep it: Bulkhead stores only its hash, and can't show it again."
    if sys.stdout.isatty():
        click.echo(f"{keep} The key {name}: {secret}")
    else:
        click.echo(f"The key {name} is printed alone to the output. {keep}", err=True)
        click.echo(secret)


@key_command.command("revoke")
@click.argument("name")
@state_dir_option
@reaches_gateway
def revoke(gateway: GatewayClient, *, name: str, state_dir: Path | None) -> None:
    """Revoke a key: it is refused from now on, and its running requests are cut off."""
    if names_gateway() and state_dir is None:
        if name in FOLDED:
            raise CommandError(f"There is no key {name!r} to revoke.")
        gateway.send("DELETE", f"{_KEYS}/{quote(name, safe='')}", timeout=ANSWER)
        left = gateway.read(gateway.get(_KEYS), KeyList).keys
    else:
        with _own_file(state_dir) as file:
            file.revoke(name, time.time())
            left = [KeyBody.of(each) for each in file.read()]
    click.echo(f"The key {name} is revoked.")
    if not any(each.revoked_at is None for each in left):
        click.echo(
            "No key is left, and requests still need one: `bulkhead key add NAME`.", err=True
        )


@key_command.command("list")
@json_option
@state_dir_option
@reaches_gateway
def list_keys(gateway: GatewayClient, *, as_json: bool, state_dir: Path | None) -> None:
    """List the names and limits of the keys. The keys themselves aren't kept."""
    if names_gateway() and state_dir is None:
        listed = gateway.read(gateway.get(_KEYS), KeyList)
    else:
        with _own_file(state_dir) as file:
            listed = KeyList([KeyBody.of(each) for each in file.read()])
    if as_json:
        print_json(listed)
    elif not listed.keys:
        click.echo("There are no keys: every program on this machine may do everything.")
    else:
        print_table(stdout_console(), _table(listed.keys))


@contextlib.contextmanager
def _own_file(state_dir: Path | None) -> Iterator[KeyFile]:
    """The key file of the state folder. At the context's end a running gateway reads the file."""
    _, folder = local_settings(state_dir)
    try:
        yield KeyFile(folder.keys_path)
    except KeyFileError as error:
        raise CommandError(str(error)) from error
    # This request lets the gateway read the file now. By itself it reads the file later.
    with contextlib.suppress(CommandError), own_gateway(state_dir) as client:
        if client is not None:
            client.get(_KEYS)


def _warn_of_unknown(gateway: GatewayClient | None, names: tuple[str, ...]) -> None:
    """Warn of names that no model has. They are no error, since the models may be added later."""
    configured = _configured() if names and gateway is None else set()
    for name in names:
        if gateway is None:
            if not any(stands_for(name, each) for each in configured):
                meant = suggestion(nearest_model(name, configured))
                click.echo(
                    f"Careful: the configuration has no model {name!r}, and no gateway runs that "
                    f"would know the models on the disks.{meant}",
                    err=True,
                )
            continue
        try:
            if "*" not in name:
                gateway.model(name)
            elif not any(
                stands_for(name, each)
                for model in gateway.models()
                for each in (model.id, *model.aliases)
            ):
                click.echo(f"Careful: {name!r} stands for no model at present.", err=True)
        except NoSuchModelError as error:
            click.echo(f"Careful: {error.message}", err=True)
        except CommandError:
            return


def _configured() -> set[str]:
    """The ids and aliases in the configuration."""
    settings, _ = local_settings(None)
    return {name for key, each in settings.models.items() for name in (key, *each.aliases)}


def _table(keys: list[KeyBody]) -> Table:
    table = new_table(1)
    table.add_column("key", overflow="fold")
    # Wide enough for a date.
    table.add_column("state", overflow="fold", min_width=10)
    table.add_column("models", overflow="fold")
    for heading in ("priority", "rpm", "tpm", "at once", "share", "made"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in keys:
        table.add_row(
            each.name,
            _state(each),
            "all" if each.models is None else ", ".join(each.models),
            *map(_limit, (each.priority, each.rpm, each.tpm, each.concurrent, each.share)),
            _day(each.created_at),
        )
    return table


def _state(key: KeyBody) -> str:
    if key.revoked_at is not None:
        return f"revoked {_day(key.revoked_at)}"
    if key.expires_at is None:
        return "good"
    verb = "expired" if key.expires_at <= time.time() else "good until"
    return f"{verb} {_day(key.expires_at)}"


def _limit(limit: int | None) -> str:
    return "-" if limit is None else f"{limit:,}"


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))


@click.command("usage")
@json_option
@state_dir_option
@reaches_gateway
def usage_command(gateway: GatewayClient, *, as_json: bool, state_dir: Path | None) -> None:
    """Show the requests and tokens of each API key, today and this month.

    "in" are prompt tokens, "cached" those of them that were found in the prompt cache, and "out"
    the tokens of answers. Without keys nothing is counted.
    """
    if state_dir is None:
        _print_usage(gateway, as_json=as_json)
        return
    with own_gateway(state_dir) as own:
        if own is None:
            raise NobodyListensError(f"No gateway runs with the state folder {state_dir}.")
        _print_usage(own, as_json=as_json)


def _print_usage(gateway: GatewayClient, *, as_json: bool) -> None:
    content = gateway.get("/admin/v1/usage")
    listed = gateway.read(content, UsageList)
    if as_json:
        click.echo(msgspec.json.format(content, indent=2))
    elif not listed.keys:
        click.echo("There are no keys, so nothing was counted: `bulkhead key add NAME` makes one.")
    else:
        stdout_console().print(_usage_table(listed.keys))


def _usage_table(keys: list[KeyUsage]) -> Table:
    table = new_table(2)
    table.add_column("key", overflow="fold")
    table.add_column("", no_wrap=True)
    for heading in ("requests", "in", "cached", "out"):
        table.add_column(heading, justify="right", overflow="fold")
    for each in keys:
        table.add_row(each.name, "today", *_counts(each.today))
        table.add_row("", "this month", *_counts(each.month))
    return table


def _counts(counts: Counts) -> tuple[str, ...]:
    numbers = (
        counts.requests,
        counts.prompt_tokens,
        counts.cached_tokens,
        counts.completion_tokens,
    )
    return tuple(f"{each:,}" for each in numbers)
