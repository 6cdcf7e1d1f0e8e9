"""The failures of commands, each with its exit status."""

from __future__ import annotations

from typing import IO, Any

import click

from gateway.cli.output import printable
from gateway.system.notation import without_number


class CommandError(click.ClickException):
    """The command failed. The message is a sentence, for stderr."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        sentence = printable(without_number(self.message))
        click.echo(f"bulkhead: {sentence}", file=file, err=file is None)


class WrongUseError(CommandError):
    """The command line is wrong, or lacks something."""

    exit_code = 2


class NoGatewayError(CommandError):
    """No gateway answers, or the connection broke."""

    exit_code = 3


class NobodyListensError(NoGatewayError):
    """No program listens at the address: neither a gateway, even a slow one, nor another."""


class HubAwayError(CommandError):
    """The hub can't be asked."""


class NoSuchModelError(CommandError):
    """The gateway doesn't know the model."""

    exit_code = 4


class NotFoundError(CommandError):
    """The gateway doesn't know what the path names, other than a model."""


class NoSuchRequestError(CommandError):
    """The gateway doesn't remember the request."""

    exit_code = 4
