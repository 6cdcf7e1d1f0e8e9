"""An answer as it is printed while it comes."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Protocol

import click

from gateway.cli.answer_stream import Piece
from gateway.cli.paragraph import Paragraph
from gateway.cli.printable import printable


class Transcript(Protocol):
    def write(self, piece: Piece) -> None: ...

    def note(self, text: str) -> None:
        """Something about the answer that is no part of it."""

    def close(self) -> None:
        """The answer is over, wherever it stopped."""


class PlainTranscript:
    """The answer alone and as it is, for a file or another program."""

    def __init__(self) -> None:
        self._wrote = False

    def write(self, piece: Piece) -> None:
        if piece.kind == "text":
            self._wrote = True
            click.echo(printable(piece.text), nl=False)

    def note(self, text: str) -> None:
        if sys.stderr.isatty():
            click.echo(printable(text), err=True)

    def close(self) -> None:
        if self._wrote:
            click.echo()


class ScreenTranscript:
    """Words are kept whole, and what the model thinks is dim."""

    def __init__(self) -> None:
        self._present: Paragraph | None = None
        self._kind = ""

    def write(self, piece: Piece) -> None:
        if self._present is None or piece.kind != self._kind:
            if self._present is not None:
                self._present.close()
                click.echo()
            self._present = Paragraph("", _width, dim=piece.kind == "reasoning" and _has_styles())
            self._kind = piece.kind
        self._present.write(piece.text)

    def note(self, text: str) -> None:
        if self._present is not None:
            self._present.end_line()
        click.echo(dim(text), err=True)

    def close(self) -> None:
        if self._present is not None:
            self._present.close()


def dim(text: str) -> str:
    text = printable(text)
    return click.style(text, dim=True) if _has_styles() else text


def _width() -> int:
    return shutil.get_terminal_size().columns


def _has_styles() -> bool:
    return os.environ.get("TERM", "dumb") != "dumb"
