"""Prints answers while they come: as they are, or with line breaks for a screen."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import Final

import click
from rich.cells import cell_len

from gateway.cli.conversation import StreamedPiece
from gateway.cli.output import printable

_FENCE: Final = "```"
_WIDE: Final = 2


class Paragraph:
    """Prints text with line breaks between words, each line behind the same indent. A wide
    character counts as a word. Blocks of code stay unbroken, so that they can be copied.
    """

    def __init__(self, indent: str, width: int | Callable[[], int], *, dim: bool = False) -> None:
        """`width` is in cells. It may be a function, since the width of a terminal changes."""
        self.words = 0
        self._indent = indent
        self._width = width
        self._dim = dim
        self._in_block = False
        self._word = ""
        self._gap = ""
        self._column = 0
        # The first characters of the line: the fence of a code block may stand there.
        self._start = ""

    def write(self, text: str) -> None:
        """Add text, and print the words that are complete. The last word waits for its end."""
        for character in printable(text):
            if character == "\n":
                self._end_line_of_text()
                continue
            if len(self._start) < len(_FENCE) and not (character.isspace() and not self._start):
                self._start += character
            if self._in_block:
                self._print(character)
            elif character.isspace():
                self._end_word()
                self._gap += character
            elif cell_len(character) == _WIDE:
                self._end_word()
                self._word = character
            else:
                self._word += character

    def end_line(self) -> None:
        """End the line, so that other output can follow; an incomplete word waits."""
        if self._column:
            click.echo()
        self._column = 0
        self._gap = ""

    def close(self) -> None:
        """Print the last word, and end the line."""
        self._end_word()
        self.end_line()

    def _end_line_of_text(self) -> None:
        self._end_word()
        # Empty lines before the first word are left out.
        if self.words:
            click.echo()
        self._column, self._gap = 0, ""
        if self._start == _FENCE:
            self._in_block = not self._in_block
        self._start = ""

    def _end_word(self) -> None:
        if not self._word:
            return
        width = self._width if isinstance(self._width, int) else self._width()
        if self._column and self._column + cell_len(self._gap + self._word) > width:
            self.end_line()
        self._print(f"{self._gap}{self._word}")
        self.words += 1
        self._word = self._gap = ""

    def _print(self, text: str) -> None:
        text = text if self._column else f"{self._indent}{text}"
        click.echo(click.style(text, dim=True) if self._dim else text, nl=False)
        self._column += cell_len(text)


class PlainTranscript:
    """Prints only the answer, unchanged, for a file or another program."""

    def __init__(self) -> None:
        self._wrote = False

    def write(self, piece: StreamedPiece) -> None:
        if piece.kind == "text":
            self._wrote = True
            click.echo(printable(piece.text), nl=False)

    def remark(self, text: str) -> None:
        if sys.stderr.isatty():
            click.echo(printable(text), err=True)

    def close(self) -> None:
        if self._wrote:
            click.echo()


class ScreenTranscript:
    """Prints an answer with line breaks between words; its reasoning is dim."""

    def __init__(self) -> None:
        self._present: Paragraph | None = None
        self._kind = ""

    def write(self, piece: StreamedPiece) -> None:
        if self._present is None or piece.kind != self._kind:
            if self._present is not None:
                self._present.close()
                click.echo()
            self._present = Paragraph("", _width, dim=piece.kind == "reasoning" and _has_styles())
            self._kind = piece.kind
        self._present.write(piece.text)

    def remark(self, text: str) -> None:
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
