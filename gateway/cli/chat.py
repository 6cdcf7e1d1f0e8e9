"""bulkhead chat"""

from __future__ import annotations

import contextlib
import sys
import termios
from collections.abc import Iterator
from typing import Final

import click

from gateway.cli.client import GatewayClient
from gateway.cli.completion import complete_model, model_names
from gateway.cli.conversation import Conversation, Parameters
from gateway.cli.failure import CommandError, WrongUseError
from gateway.cli.gateway_access import local_settings
from gateway.cli.options import only_model, reaches_gateway
from gateway.cli.orders import carried_out
from gateway.cli.output import printable
from gateway.cli.transcript import PlainTranscript, ScreenTranscript
from gateway.http.wire.command_bodies import OrderOptions

# Indexes into the list that `tcgetattr` returns.
_INPUT: Final = 0
_LOCAL: Final = 3
_CHARACTERS: Final = 6


@contextlib.contextmanager
def unechoed() -> Iterator[None]:
    """Switch off the terminal's echo and line editing. Keys that are typed while an answer is
    printed aren't shown: the next prompt reads these keys, unchanged. Ctrl-C still works at once.
    """
    terminal = sys.stdin.fileno()
    try:
        before = termios.tcgetattr(terminal)
    except termios.error:
        yield
        return
    quiet = termios.tcgetattr(terminal)
    # Without line editing the next prompt gets every key as it was typed.
    quiet[_INPUT] &= ~termios.ICRNL
    quiet[_LOCAL] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    quiet[_CHARACTERS][termios.VMIN] = 1
    quiet[_CHARACTERS][termios.VTIME] = 0
    termios.tcsetattr(terminal, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@click.command("chat")
@click.argument("model", metavar="[MODEL]", required=False, shell_complete=complete_model)
@click.option("--system", metavar="TEXT", help="System message: instructions for the model.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="0: always the likeliest word.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest answer, in tokens.")
@reaches_gateway
def chat_command(
    gateway: GatewayClient,
    *,
    model: str | None,
    system: str | None,
    temperature: float | None,
    max_tokens: int | None,
) -> None:
    """Chat with a model. MODEL may be left out if there is only one.

    /help shows the commands within a chat. Ctrl-D ends the chat, Ctrl-C an answer. If input or
    output is no terminal, all of stdin is one message, and only the answer is printed.
    """
    model_id = only_model(gateway) if model is None else gateway.model(model).id
    parameters = Parameters(temperature=temperature, max_tokens=max_tokens)
    chat(gateway, Conversation(gateway, model_id, system, parameters))


def chat(gateway: GatewayClient, conversation: Conversation) -> None:
    """Hold a conversation: on a terminal until the user ends it, otherwise one message of stdin."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        with unechoed():
            _converse(gateway, conversation)
        return
    if sys.stdin.isatty():
        click.echo("Type the message; Ctrl-D after its last line sends it.", err=True)
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not text.strip():
        raise WrongUseError("There is no message on stdin.")
    conversation.ask(text, PlainTranscript())


def _converse(gateway: GatewayClient, conversation: Conversation) -> None:
    # prompt_toolkit takes longer to import than other verbs take to run.
    from gateway.cli.chat_commands import ChatCommands
    from gateway.cli.chat_input import Keyboard, history

    _, state_dir = local_settings(None)
    keyboard = Keyboard(history(state_dir.chat_history_path), lambda: model_names(gateway))
    commands = ChatCommands(gateway, conversation)
    readiness = _made_ready(gateway, conversation.model_id)
    click.echo(f"{readiness} /help shows the commands.", err=True)
    while not commands.over:
        try:
            text = keyboard.message()
        except KeyboardInterrupt:
            click.echo("(/exit or Ctrl-D ends the chat)", err=True)
            continue
        except EOFError:
            return
        try:
            if text and not commands.run(text):
                message = text[1:] if text.startswith("//") else text
                conversation.ask(message, ScreenTranscript())
        except KeyboardInterrupt:
            click.echo("(stopped)", err=True)
        except CommandError as error:
            error.show()


# An order to load such a model would undo an operator's order, or forget its failures.
_NOT_BY_ITSELF: Final = ("held", "backoff", "failed")


def _made_ready(gateway: GatewayClient, model_id: str) -> str:
    """Load the model if a request would load it, and say whether it is ready."""
    name = printable(model_id)
    model = gateway.model(model_id)
    if model.state != "ready" and model.state not in _NOT_BY_ITSELF and not model.is_upstreams:
        # Only operators give orders. A failed load is reported below.
        with contextlib.suppress(CommandError):
            carried_out(gateway, "load", model_id, OrderOptions())
        model = gateway.model(model_id)
    if model.state == "ready":
        return f"{name} is ready."
    if model.state in _NOT_BY_ITSELF:
        why = printable(model.reason or "no reason is known").rstrip(".")
        return f"{name} is {model.state} ({why})."
    return f"{name} is {model.state}: your first message loads it."
