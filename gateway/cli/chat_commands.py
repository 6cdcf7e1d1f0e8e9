"""The commands within a chat: /help, /model and the like."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import click
from msgspec import Struct

from gateway.cli.client import GatewayClient
from gateway.cli.conversation import Conversation, ParameterError, Parameters, shown, with_parameter
from gateway.cli.failure import CommandError
from gateway.cli.output import printable
from gateway.cli.transcript import ScreenTranscript, dim
from gateway.system.notation import nearest

# The form of a command. A path such as /usr/bin doesn't match: a message may begin with a path.
_COMMAND_FORM: Final = re.compile(r"/(\?|[A-Za-z]+)(?:\s+(.*))?", re.DOTALL)
_NO_SYSTEM_MESSAGE: Final = "none"


class SlashCommand(Struct, frozen=True):
    """A command of the chat, as /help shows it."""

    name: str
    argument: str
    meaning: str


COMMANDS: Final = (
    SlashCommand("help", "", "show this"),
    SlashCommand("model", "[NAME]", "show the models, or talk to another one; Tab completes"),
    SlashCommand(
        "system", "[TEXT|none]", "show or set the system message, the model's instructions"
    ),
    SlashCommand("set", "[NAME VALUE]", "show the parameters, or set one: /set temperature 0.5"),
    SlashCommand("unset", "NAME", "leave a parameter to the model again"),
    SlashCommand("retry", "", "ask the last question once more"),
    SlashCommand("clear", "", "forget the messages; all settings stay"),
    SlashCommand("exit", "", "end the chat, as Ctrl-D does"),
)
COMMAND_NAMES: Final = tuple(command.name for command in COMMANDS)
_WITHOUT_ARGUMENT: Final = tuple(command.name for command in COMMANDS if not command.argument)
# Names of the same commands in ollama and other programs.
_OTHER_NAMES: Final = {
    "?": "help",
    "bye": "exit",
    "quit": "exit",
    "q": "exit",
    "regenerate": "retry",
    "reset": "clear",
    "new": "clear",
}
_KEY_MEANINGS: Final = (
    ('\\ at the end, or """', "go on in the next line; pasted lines stay together"),
    ("Ctrl-C", "stop an answer; the part that came stays"),
    ("Up, Ctrl-R", "earlier lines, of earlier chats too"),
    ("//...", "a message that begins with a slash"),
)


class ChatCommands:
    """Runs the commands of a chat, such as /model, on its conversation."""

    def __init__(self, gateway: GatewayClient, conversation: Conversation) -> None:
        self._gateway = gateway
        self._conversation = conversation
        self.over = False

    def run(self, text: str) -> bool:
        """Run a typed command. Return False, and do nothing, if the text is a message.

        Raises:
            CommandError: there is no such command, or the command failed.
        """
        read = _COMMAND_FORM.fullmatch(text)
        if read is None:
            return False
        typed, argument = read[1].lower(), (read[2] or "").strip()
        name = _OTHER_NAMES.get(typed, typed)
        if name not in COMMAND_NAMES:
            similar = nearest(name, COMMAND_NAMES)
            meant = "" if similar is None else f" Did you mean /{similar}?"
            raise CommandError(
                f"There is no /{typed}.{meant} /help shows all of them, and // begins a message."
            )
        if argument and name in _WITHOUT_ARGUMENT:
            raise CommandError(
                f"/{typed} takes no argument: type /{typed} alone, or // to begin a message."
            )
        command: Callable[[str], None] = getattr(self, f"_{name}")
        command(argument)
        return True

    def _help(self, _argument: str) -> None:
        rows = [
            (f"/{command.name} {command.argument}".strip(), command.meaning) for command in COMMANDS
        ]
        for left, right in (*rows, *_KEY_MEANINGS):
            click.echo(f"{left:<22} {right}")

    def _model(self, argument: str) -> None:
        if argument:
            self._conversation.model_id = self._gateway.model(argument).id
            click.echo(dim(f"{self._conversation.model_id} goes on with the same messages."))
            return
        for model in self._gateway.models():
            mark = "*" if model.id == self._conversation.model_id else " "
            click.echo(f"{mark} {printable(model.id)} ({model.state})")

    def _system(self, argument: str) -> None:
        if argument:
            self._conversation.system = None if argument == _NO_SYSTEM_MESSAGE else argument
        system = self._conversation.system
        click.echo(dim("there is no system message") if system is None else printable(system))

    def _set(self, argument: str) -> None:
        name, _, value = argument.partition(" ")
        # ollama's command is /set parameter NAME VALUE.
        if name == "parameter":
            name, _, value = value.strip().partition(" ")
        if not value.strip():
            self._show(name)
            return
        self._change(name, value.strip())

    def _unset(self, argument: str) -> None:
        if not argument:
            raise CommandError("Name the parameter: /unset temperature.")
        self._change(argument, None)

    def _retry(self, _argument: str) -> None:
        if not self._conversation.retry(ScreenTranscript()):
            raise CommandError("Nothing was asked yet.")

    def _clear(self, _argument: str) -> None:
        self._conversation.clear()
        click.echo(dim("forgotten"))

    def _exit(self, _argument: str) -> None:
        self.over = True

    def _show(self, name: str) -> None:
        rows = [row for row in shown(self._conversation.parameters) if name in ("", row[0])]
        if not rows:
            # No parameter has this name: `_change` raises the error, which suggests another name.
            self._change(name, None)
        for parameter, value, meaning in rows:
            click.echo(f"{parameter:<20} {printable(value) or '-':<10} {meaning}")

    def _change(self, name: str, value: str | None) -> None:
        try:
            changed: Parameters = with_parameter(self._conversation.parameters, name, value)
        except ParameterError as error:
            raise CommandError(str(error)) from error
        self._conversation.parameters = changed
        self._show(name)
