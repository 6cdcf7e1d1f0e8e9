"""bulkhead launch"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import click
from msgspec import Struct

from gateway.cli.client import GatewayClient, KeyRefusedError
from gateway.cli.completion import complete_model
from gateway.cli.failure import (
    CommandError,
    NobodyListensError,
    NoSuchModelError,
    WrongUseError,
)
from gateway.cli.launch_model import find_model, load_for, own_context, present_context
from gateway.cli.named_model import Choice, Served, choose, present, served_name, serving
from gateway.cli.options import check_key, gathers, names_gateway, reaches_gateway, read_key
from gateway.cli.output import printable
from gateway.clients.agents import AGENTS, KEY_VARIABLE, Agent, Connection
from gateway.clients.lines import EDITORS, agent_lines, editor_lines
from gateway.clients.own_file import OwnFileError, undo, write
from gateway.config.model_settings import ModelSettings
from gateway.system.child import Child

_ARGUMENTS: Final = "bulkhead.arguments"
_UNKNOWN_CONTEXT: Final = ModelSettings("").context_tokens


class NotInstalledError(CommandError):
    """The agent isn't there. The exit status is that of shells."""

    exit_code = 127


class _LaunchCommand(click.Command):
    """A command that leaves everything after `--` to the program that it starts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_ARGUMENTS] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


class LaunchOptions(Struct, frozen=True):
    """`api_key_file` is the key in that file, which comes before `api_key`. At most one of `lines`,
    `into_file` and `undone` is true: then nothing is started.
    """

    context_tokens: int | None
    api_key: str | None
    api_key_file: str | None
    lines: bool
    into_file: bool
    undone: bool

    @property
    def key(self) -> str | None:
        return self.api_key_file or self.api_key


_takes_options: Final = gathers(
    LaunchOptions,
    click.option(
        "--context",
        "context_tokens",
        type=click.IntRange(1),
        help="Tokens of context [as many as the agent works well with, if they fit].",
    ),
    click.option(
        "--api-key",
        envvar=KEY_VARIABLE,
        callback=check_key,
        help="The agent's API key, where the gateway has keys; others on this machine can see it "
        f"in the list of processes [{KEY_VARIABLE}].",
    ),
    click.option(
        "--api-key-file",
        type=click.Path(path_type=Path),
        callback=read_key,
        help="A file with the agent's API key, which others may not read.",
    ),
    click.option("--print", "lines", is_flag=True, help="Print lines to copy; start nothing."),
    click.option(
        "--write",
        "into_file",
        is_flag=True,
        help="Write the settings into the agent's own file; start nothing.",
    ),
    click.option("--undo", "undone", is_flag=True, help="Take back what --write has written."),
)


@click.command("launch", cls=_LaunchCommand)
@click.argument("client", metavar="AGENT", type=click.Choice([*AGENTS, *EDITORS]))
@click.argument("model", nargs=-1, metavar="[MODEL]...", shell_complete=complete_model)
@reaches_gateway
@_takes_options
def launch_command(
    options: LaunchOptions, gateway: GatewayClient, *, client: str, model: tuple[str, ...]
) -> None:
    """Start a coding agent with a model of the gateway.

    AGENT is claude (Claude Code), codex or opencode. What follows -- goes to the agent. MODEL is
    what `bulkhead run` takes, such as qwen3 4b, and may be left out if there is only one. If no
    gateway runs, one is started for this run.

    The model is pulled if it is missing, and loaded with the context that the agent needs. The
    agent gets its settings by variables and arguments, for this run alone; its own files are
    changed only by --write.

    With --print AGENT may also be zed, continue or other, which are set by hand.
    """
    agent = AGENTS.get(client)
    name = " ".join(model)
    if sum((options.lines, options.into_file, options.undone)) > 1:
        raise WrongUseError("Give one of --print, --write and --undo.")
    if options.lines:
        connection = _set_by_hand(gateway, name or None, options)
        if agent is None:
            lines = editor_lines(EDITORS[client], connection)
        else:
            lines = agent_lines(agent, connection)
        click.echo(f"{lines.title}, {lines.place}:", err=True)
        if lines.remark is not None:
            click.echo(printable(lines.remark), err=True)
        click.echo(printable(lines.text))
    elif agent is None:
        raise WrongUseError(
            f"{EDITORS[client].title} can't be launched: `bulkhead launch {client} --print` has "
            "the lines to copy."
        )
    elif options.undone:
        _undo(agent)
    elif options.into_file:
        _write(agent, _set_by_hand(gateway, name or None, options))
    else:
        _start(gateway, agent, name, options)


def _set_by_hand(gateway: GatewayClient, name: str | None, options: LaunchOptions) -> Connection:
    """The connection for a client that somebody starts later. Nothing is loaded for it."""
    key, tokens = options.key, options.context_tokens
    try:
        model = find_model(gateway, name, key)
    except NobodyListensError:
        if name is None or names_gateway():
            raise
        click.echo("No gateway runs, so the model and its context aren't checked.", err=True)
        return Connection(gateway.url, name, tokens or _UNKNOWN_CONTEXT, key)
    if tokens is None:
        tokens = present_context(gateway, model)
    if tokens is None:
        tokens = _UNKNOWN_CONTEXT
    return Connection(
        gateway.url,
        served_name(model, name or ""),
        tokens,
        key,
        of_upstream=model.is_upstreams,
        own_context_tokens=own_context(gateway, model),
    )


def _write(agent: Agent, connection: Connection) -> None:
    try:
        written = write(agent, connection, os.environ)
    except (OwnFileError, OSError) as error:
        raise CommandError(f"Nothing was written: {error}.") from error
    earlier = "" if written.backup is None else f", and {written.backup} what was there before"
    click.echo(
        f"{written.path} has the settings now{earlier}. "
        f"Start {agent.title} with `{agent.file.start}`; "
        f"`bulkhead launch {agent.name} --undo` takes the settings back."
    )
    if (remark := agent_lines(agent, connection).remark) is not None:
        click.echo(printable(remark), err=True)


def _undo(agent: Agent) -> None:
    try:
        path = undo(agent, os.environ)
    except (OwnFileError, OSError) as error:
        raise CommandError(f"Nothing was changed: {error}.") from error
    click.echo(f"{path} is without the settings of `bulkhead launch` again.")


def _start(gateway: GatewayClient, agent: Agent, name: str, options: LaunchOptions) -> None:
    program = shutil.which(agent.program)
    if program is None:
        raise NotInstalledError(f"{agent.title} isn't installed: {agent.install}")
    with serving(gateway, name) as (client, child):
        choice = _chosen(client, agent, name, options.key)
        served = present(client, choice)
        model = find_model(client, served, options.key)
        tokens = load_for(client, agent, model, options.context_tokens)
        asked_for = served_name(model, served)
        setup = agent.setup(Connection(client.url, asked_for, tokens, options.key))
        arguments = click.get_current_context().meta[_ARGUMENTS]
        command = [program, *setup.arguments, *arguments]
        environment = setup.applied(os.environ)
        if child is None:
            _become(command, environment)
        status = _run(command, environment)
        click.echo(f"The gateway of this run (pid {child.pid}) ends.", err=True)
    sys.exit(status)


def _chosen(gateway: GatewayClient, agent: Agent, name: str, key: str | None) -> Choice:
    """The model that the name means: one that the agent may use, or else as for `bulkhead run`."""
    try:
        model = find_model(gateway, name or None, key)
        return Served(served_name(model, name))
    except (NoSuchModelError, WrongUseError) as error:
        try:
            return choose(gateway, name, f"bulkhead launch {agent.name} NAME")
        except KeyRefusedError:
            # Without the admin key there are no other models than those that the agent may use.
            raise error from None


# A terminal sends these to the agent as well.
_FROM_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)
_FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP)


def _become(command: list[str], environment: dict[str, str]) -> NoReturn:
    """Run the agent in place of this process, which so has its signals and its exit status."""
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        raise CommandError(f"{command[0]} can't be started: {error.strerror}.") from error


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run the agent, pass signals on, and return its exit status, as a shell would have it."""
    try:
        agent = Child(
            command, "agent", environment=environment, stdin=None, stdout=None, stderr=None
        )
    except OSError as error:
        raise CommandError(f"{command[0]} can't be started: {error.strerror}.") from error

    def forward(number: int, _frame: FrameType | None) -> None:
        agent.signal(signal.Signals(number))

    def ignore(_number: int, _frame: FrameType | None) -> None:
        """The agent decides by itself."""

    from_terminal = ignore if sys.stdin.isatty() else forward
    before = {signal_number: signal.signal(signal_number, forward) for signal_number in _FORWARDED}
    before |= {
        signal_number: signal.signal(signal_number, from_terminal)
        for signal_number in _FROM_TERMINAL
    }
    try:
        status = agent.wait()
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
    return 128 - status if status < 0 else status
