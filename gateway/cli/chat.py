"""bulkhead chat"""

from __future__ import annotations

import contextlib
import sys
from typing import Final

import click

from gateway.cli.bodies import ChatMessage, ChatRequest
from gateway.cli.client import GatewayClient
from gateway.cli.conversation import stream_answer
from gateway.cli.failure import CommandError, WrongUseError
from gateway.cli.options import reaches_gateway
from gateway.cli.printable import printable

_PROMPT: Final = "> "


@click.command("chat")
@click.argument("model", metavar="[MODEL]", required=False)
@click.option("--system", metavar="TEXT", help="What the model is told before everything else.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="0: always the likeliest word.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest answer.")
@reaches_gateway
def command(
    gateway: GatewayClient,
    *,
    model: str | None,
    system: str | None,
    temperature: float | None,
    max_tokens: int | None,
) -> None:
    """Chat with a model; MODEL may be left out where there is only one.

    /exit or Ctrl-D ends the chat, Ctrl-C an answer. If stdin is not a terminal, all of it is one
    message, and the answer is printed.
    """
    chat = _Chat(
        gateway,
        _only_model(gateway) if model is None else gateway.model(model).id,
        system=system,
        temperature=temperature,
        max_tokens=max_tokens,
    )
    if sys.stdin.isatty():
        _converse(chat)
    else:
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
        if not text.strip():
            raise WrongUseError("There is no message on stdin.")
        chat.ask(text)


def _only_model(gateway: GatewayClient) -> str:
    ids = [each.id for each in gateway.models()]
    if len(ids) != 1:
        known = ", ".join(ids) or "none"
        raise WrongUseError(f"Say which model to chat with; there are: {known}.")
    return ids[0]


class _Chat:
    """The messages so far, and how to get one more."""

    def __init__(
        self,
        gateway: GatewayClient,
        model_id: str,
        *,
        system: str | None,
        temperature: float | None,
        max_tokens: int | None,
    ) -> None:
        self.model_id = model_id
        self._gateway = gateway
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._messages: list[ChatMessage] = []
        if system is not None:
            self._messages.append(ChatMessage("system", system))
        self._told_state: str | None = None

    def ask(self, text: str) -> None:
        """Print the answer as it comes; the history gets question and answer, or neither.

        An answer that is interrupted counts as far as it came.

        Raises:
            CommandError: there was no answer, or it broke off.
        """
        question = ChatMessage("user", text)
        request = ChatRequest(
            self.model_id,
            (*self._messages, question),
            True,
            self._temperature,
            self._max_tokens,
        )
        self._told_state = None
        pieces: list[str] = []
        try:
            with contextlib.closing(stream_answer(self._gateway, request, self._tell)) as answer:
                for piece in answer:
                    pieces.append(piece)
                    click.echo(printable(piece), nl=False)
        except KeyboardInterrupt:
            self._keep(question, pieces)
            raise
        finally:
            if any(pieces):
                click.echo()
        self._keep(question, pieces)

    def _keep(self, question: ChatMessage, pieces: list[str]) -> None:
        if any(pieces):
            self._messages += [question, ChatMessage("assistant", "".join(pieces))]

    def _tell(self) -> None:
        """Say what the wait is for, once for each state."""
        if not sys.stderr.isatty():
            return
        state = self._gateway.model(self.model_id).state
        if state != self._told_state:
            self._told_state = state
            click.echo(f"waiting for {printable(self.model_id)} ({state}...)", err=True)


def _converse(chat: _Chat) -> None:
    # Loaded for its effect: input() then edits lines and remembers them.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    click.echo(f"{printable(chat.model_id)} listens; /exit or Ctrl-D ends the chat.", err=True)
    while (text := _next_message()) is not None:
        try:
            if text:
                chat.ask(text)
        except KeyboardInterrupt:
            click.echo("(stopped)", err=True)
        except CommandError as error:
            error.show()


def _next_message() -> str | None:
    """What was typed, or None at the end."""
    try:
        text = input(_PROMPT).strip()
    except KeyboardInterrupt:
        click.echo("\n(/exit or Ctrl-D ends the chat)", err=True)
        return ""
    except EOFError:
        click.echo()
        return None
    return None if text == "/exit" else text
