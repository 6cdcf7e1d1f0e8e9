"""How a command ends other than well; scripts tell the ways apart by the exit status."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import IO, Any, Final

import click

from gateway.cli.output import printable

# As shells count the end by SIGINT.
_INTERRUPTED: Final = 130


class CommandError(click.ClickException):
    """It failed. The text is a sentence, for stderr."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"bulkhead: {printable(self.message)}", file=file, err=file is None)


class WrongUseError(CommandError):
    """The command line leaves open what to do."""

    exit_code = 2


class NoGatewayError(CommandError):
    """No gateway answers, or none any more."""

    exit_code = 3


class NobodyListensError(NoGatewayError):
    """There is no gateway: not one that is slow, or something else in its place."""


class NoSuchModelError(CommandError):
    """The gateway doesn't know the model."""

    exit_code = 4


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make Ctrl-C an end without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        raise click.exceptions.Exit(_INTERRUPTED) from None
