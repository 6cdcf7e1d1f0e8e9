"""Text that is printed while it comes, and yet in tidy lines."""

from __future__ import annotations

import click

from gateway.cli.printable import printable


class Paragraph:
    """Breaks lines between words, each behind the same indent."""

    def __init__(self, indent: str, width: int) -> None:
        self.words = 0
        self._indent = indent
        self._width = width
        self._word = ""
        self._column = 0

    def write(self, text: str) -> None:
        """Print the words that are complete."""
        for character in printable(text):
            if not character.isspace():
                self._word += character
                continue
            self._end_word()
            if character == "\n":
                self.end_line()

    def end_line(self) -> None:
        """Let something else be printed in between; a word that is incomplete waits."""
        if self._column:
            click.echo()
        self._column = 0

    def close(self) -> None:
        """Print what is left."""
        self._end_word()
        self.end_line()

    def _end_word(self) -> None:
        if not self._word:
            return
        if self._column + 1 + len(self._word) > self._width:
            self.end_line()
        words = f"{' ' if self._column else self._indent}{self._word}"
        click.echo(words, nl=False)
        self._column += len(words)
        self.words += 1
        self._word = ""
