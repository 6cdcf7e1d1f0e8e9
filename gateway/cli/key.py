"""bulkhead key"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click
import msgspec
from rich.table import Table

from gateway.access.api_key import (
    LARGEST_LIMIT,
    LARGEST_SHARE,
    LATEST_EXPIRY,
    KeyBody,
    KeyChange,
    KeyList,
    KeyTerms,
    NewKey,
)
from gateway.access.caller import stands_for
from gateway.access.key_file import KeyFile, KeyFileError
from gateway.cli import UncutGroup
from gateway.cli.client import ANSWER, FOLDED, GatewayClient
from gateway.cli.failure import CommandError, NoSuchModelError
from gateway.cli.gateway_access import local_gateway, local_settings
from gateway.cli.options import json_option, names_gateway, reaches_gateway, state_dir_option
from gateway.cli.output import Column, count, print_json, print_table, stdout_console, table_of
from gateway.config.machine_rules import why_keys_stay
from gateway.system.notation import nearest_model, parse_time, suggestion

_KEYS: Final = "/admin/v1/keys"


@click.group("key", cls=UncutGroup)
def key_command() -> None:
    """Make, list, change and revoke API keys.

    Keys are kept in the gateway's state folder, so the gateway needn't run. With --url the keys of
    that gateway are meant.
    """


def _check_expires(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> float | None:
    """The Unix time at which the key expires."""
    if text is None:
        return None
    if text.strip().replace(".", "", 1).isdecimal():
        raise click.BadParameter(f"{text!r} has no unit. Say it: 90d, 12h.")
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
    all_names: dict[str, None] = {}
    for text in texts:
        names = dict.fromkeys(filter(None, (word.strip() for word in text.split(","))))
        if not names:
            # An empty list would allow all models.
            raise click.BadParameter(
                f"{text!r} names no model: name one, or leave --models out for all of them."
            )
        all_names |= names
    return tuple(all_names) or None


def _takes_terms(verb: Callable[..., None]) -> Callable[..., None]:
    """The options of a verb that says what a key may do."""
    for option in reversed(_TERMS):
        verb = option(verb)
    return verb


_TERMS: Final = (
    click.option(
        "--models",
        multiple=True,
        callback=_check_models,
        metavar="MODEL,...",
        help="The only models that the key may use, by id or alias; box/* stands for all of an "
        "upstream. Repeatable.",
    ),
    click.option(
        "--priority",
        type=click.IntRange(-1000, 1000),
        help="The highest priority of its requests [the model's own].",
    ),
    click.option("--rpm", type=click.IntRange(1, LARGEST_LIMIT), help="Requests a minute."),
    click.option(
        "--tpm",
        type=click.IntRange(1, LARGEST_LIMIT),
        help="Tokens a minute, of prompts and answers.",
    ),
    click.option("--concurrent", type=click.IntRange(1, LARGEST_LIMIT), help="Answers at once."),
    click.option(
        "--share",
        type=click.IntRange(1, LARGEST_SHARE),
        help="Its weight while several keys want a model [1].",
    ),
    click.option(
        "--expires",
        "expires_at",
        callback=_check_expires,
        metavar="TIME",
        help="When it ends: 90d, 12h, or a date.",
    ),
)


@key_command.command("add")
@click.argument("name")
@_takes_terms
@click.option(
    "--reads",
    is_flag=True,
    help="It may only look: status, models, events, requests, usage, metrics and the page.",
)
@state_dir_option
@reaches_gateway
def add(gateway: GatewayClient, /, *, name: str, state_dir: Path | None, **terms: Any) -> None:
    """Make an API key and print it. It can't be shown again. A file or a pipe gets the key alone.

    Clients send it as `Authorization: Bearer KEY` or `x-api-key: KEY`. Without options the key may
    use every model without limits. From the first key on every client needs one: `bulkhead key off`
    goes back.
    """
    new = NewKey(name=name, **terms)
    if new.complaint is not None:
        raise click.UsageError(new.complaint)
    first = False
    if names_gateway() and state_dir is None:
        _warn_of_unknown(gateway, new.models or ())
        first = not gateway.read(gateway.get(_KEYS), KeyList).required
        secret = gateway.read(gateway.send("POST", _KEYS, new, ANSWER), KeyBody).key
    else:
        with local_gateway(state_dir) as local:
            _warn_of_unknown(local, new.models or ())
        with _local_file(state_dir) as file:
            first = not _needed(file)
            _, secret = file.add(name, KeyTerms(**terms), time.time())
    if first:
        click.echo(
            "From now on every client needs a key, also those that had none: make one for each. "
            "Commands of this account find the admin key in the state folder by themselves. "
            "`bulkhead key off` goes back to a gateway without keys.",
            err=True,
        )
    keep = "Keep it: Bulkhead stores only its hash, and can't show it again."
    if sys.stdout.isatty():
        click.echo(f"{keep} The key {name}: {secret}")
    else:
        click.echo(f"The key {name} is printed alone to the output. {keep}", err=True)
        click.echo(secret)


_UNSET: Final = {"expires": "expires_at"}
_LIMITS: Final = ("models", "priority", "rpm", "tpm", "concurrent", "share", "expires")


@key_command.command("set")
@click.argument("name")
@_takes_terms
@click.option(
    "--unset",
    multiple=True,
    type=click.Choice(_LIMITS),
    help="Remove this limit. Repeatable.",
)
@state_dir_option
@reaches_gateway
def set_terms(
    gateway: GatewayClient,
    /,
    *,
    name: str,
    unset: tuple[str, ...],
    state_dir: Path | None,
    **terms: Any,
) -> None:
    """Change the limits of a key, which keeps its secret. What isn't named stays as it is."""
    given = {field: value for field, value in terms.items() if value is not None}
    removed = dict.fromkeys(_UNSET.get(limit, limit) for limit in unset)
    if both := given.keys() & removed.keys():
        raise click.UsageError(f"Either set or unset {min(both)}.")
    if not given and not removed:
        raise click.UsageError("Name what is to change, as --rpm 60 or --unset rpm.")
    change = KeyChange(**given, **removed)
    if names_gateway() and state_dir is None:
        _warn_of_unknown(gateway, terms["models"] or ())
        gateway.send("POST", _path(name), change, ANSWER)
    else:
        with local_gateway(state_dir) as local:
            _warn_of_unknown(local, terms["models"] or ())
        with _local_file(state_dir) as file:
            file.change(name, change)
    click.echo(f"The key {name} has its new limits: `bulkhead key list` shows them.")


@key_command.command("revoke")
@click.argument("name")
@state_dir_option
@reaches_gateway
def revoke(gateway: GatewayClient, *, name: str, state_dir: Path | None) -> None:
    """Revoke a key: it is refused from now on, and its running requests are cut off."""
    if names_gateway() and state_dir is None:
        gateway.send("DELETE", _path(name), timeout=ANSWER)
        left = bool(gateway.read(gateway.get(_KEYS), KeyList).keys)
    else:
        with _local_file(state_dir) as file:
            file.revoke(name)
            left = bool(file.read())
    click.echo(f"The key {name} is revoked.")
    if not left:
        click.echo(
            "No key is left, and requests still need one: `bulkhead key add NAME`, or "
            "`bulkhead key off`.",
            err=True,
        )


@key_command.command("off")
@click.option("--yes", is_flag=True, help="Don't ask.")
@state_dir_option
@reaches_gateway
def off(gateway: GatewayClient, *, yes: bool, state_dir: Path | None) -> None:
    """Go back to a gateway without keys, as before the first one.

    All keys are revoked, and every program of this machine may do everything. A gateway that other
    machines can reach keeps its keys.
    """
    with contextlib.ExitStack() as stack:
        elsewhere = names_gateway() and state_dir is None
        reached = gateway if elsewhere else stack.enter_context(local_gateway(state_dir))
        if reached is None:
            _turn_off_here(state_dir, yes=yes)
            return
        listed = reached.read(reached.get(_KEYS), KeyList)
        if _agreed(listed, yes=yes):
            reached.send("DELETE", _KEYS, timeout=ANSWER)
            click.echo(_OFF)


_OFF: Final = "There are no keys any more. Clients may go on sending theirs: nobody looks at them."


def _turn_off_here(state_dir: Path | None, *, yes: bool) -> None:
    """Remove the keys of a state folder with which no gateway runs."""
    settings, _ = local_settings(state_dir)
    with _local_file(state_dir) as file:
        listed = msgspec.structs.replace(
            _listed(file), why_required=why_keys_stay(settings.gateway)
        )
        if _agreed(listed, yes=yes):
            file.remove()
            click.echo(_OFF)


def _agreed(listed: KeyList, *, yes: bool) -> bool:
    """Say what it means to have no keys, and ask. False: there are none.

    Raises:
        CommandError: the gateway needs keys, or nobody can be asked, or the answer is no.
    """
    if not listed.required:
        click.echo("There are no keys: every program of this machine may do everything.")
        return False
    if listed.why_required is not None:
        raise CommandError(listed.why_required)
    names = ", ".join(key.name for key in listed.keys) or "none is left"
    click.echo(
        f"This revokes all keys for good ({names}), and cuts off what runs under them. Then every "
        "program and every account of this machine may do everything, without a key: the "
        "operator's orders, too. The gateway listens for this machine alone, and refuses what a "
        "proxy passes on.",
        err=True,
    )
    if yes:
        return True
    if not sys.stdin.isatty():
        raise CommandError("Nobody can be asked here: --yes agrees.")
    if not click.confirm("Go on without keys?", err=True):
        raise CommandError("The keys stay.")
    return True


@key_command.command("list")
@json_option
@state_dir_option
@reaches_gateway
def list_keys(gateway: GatewayClient, *, as_json: bool, state_dir: Path | None) -> None:
    """List the names and limits of the keys. The keys themselves aren't kept."""
    if names_gateway() and state_dir is None:
        listed = gateway.read(gateway.get(_KEYS), KeyList)
    else:
        with _local_file(state_dir) as file:
            listed = _listed(file)
    if as_json:
        print_json(listed)
    elif listed.keys:
        print_table(stdout_console(), _table(listed.keys))
    elif listed.required:
        click.echo("No key is left, and requests need one: `bulkhead key add NAME` makes one.")
    else:
        click.echo("There are no keys: every program on this machine may do everything.")


def _path(name: str) -> str:
    """The path of a key. Raises: CommandError: the name would lead to another path."""
    if name in FOLDED:
        raise CommandError(f"There is no key {name!r}.")
    return f"{_KEYS}/{quote(name, safe='')}"


def _listed(file: KeyFile) -> KeyList:
    return KeyList([KeyBody.of(key) for key in file.read()], _needed(file))


def _needed(file: KeyFile) -> bool:
    """Whether requests need a key."""
    try:
        return file.signature() is not None
    except OSError as error:
        raise KeyFileError(f"The keys in {file.path} can't be read: {error}.") from error


@contextlib.contextmanager
def _local_file(state_dir: Path | None) -> Iterator[KeyFile]:
    """The key file of the state folder. At the context's end a running gateway reads the file."""
    _, folder = local_settings(state_dir)
    try:
        yield KeyFile(folder.keys_path)
    except KeyFileError as error:
        raise CommandError(str(error)) from error
    # This request lets the gateway read the file now. By itself it reads the file later.
    with contextlib.suppress(CommandError), local_gateway(state_dir) as client:
        if client is not None:
            client.get(_KEYS)


def _warn_of_unknown(gateway: GatewayClient | None, names: tuple[str, ...]) -> None:
    """Warn of names that no model has. They are no error, since the models may be added later."""
    configured = _configured() if names and gateway is None else set()
    for name in names:
        if gateway is None:
            if not any(stands_for(name, model_id) for model_id in configured):
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
                stands_for(name, alias)
                for model in gateway.models()
                for alias in (model.id, *model.aliases)
            ):
                click.echo(f"Careful: {name!r} stands for no model at present.", err=True)
        except NoSuchModelError as error:
            click.echo(f"Careful: {error.message}", err=True)
        except CommandError:
            return


def _configured() -> set[str]:
    """The ids and aliases in the configuration."""
    settings, _ = local_settings(None)
    return {name for key, model in settings.models.items() for name in (key, *model.aliases)}


def _state(key: KeyBody) -> str:
    if key.expires_at is None:
        return "good"
    verb = "expired" if key.expires_at <= time.time() else "good until"
    return f"{verb} {_day(key.expires_at)}"


def _models(key: KeyBody) -> str:
    return "none, it reads" if key.reads else ", ".join(key.models or ("all",))


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))


_COLUMNS: Final = (
    Column[KeyBody]("key", lambda key: key.name, "name"),
    Column[KeyBody]("state", _state, "name"),
    Column[KeyBody]("models", _models, "name"),
    Column[KeyBody]("priority", lambda key: count(key.priority)),
    Column[KeyBody]("rpm", lambda key: count(key.rpm)),
    Column[KeyBody]("tpm", lambda key: count(key.tpm)),
    Column[KeyBody]("at once", lambda key: count(key.concurrent)),
    Column[KeyBody]("share", lambda key: count(key.share)),
    Column[KeyBody]("made", lambda key: _day(key.created_at)),
)


def _table(keys: list[KeyBody]) -> Table:
    table = table_of(keys, _COLUMNS, gap=1)
    # Wide enough for a date.
    table.columns[1].min_width = 10
    return table
