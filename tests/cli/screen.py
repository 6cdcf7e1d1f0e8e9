"""A terminal as a person sees it: what a command prints, drawn into rows and columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyte

from tests.cli.terminal import BULKHEAD, Terminal, terminal
from tests.support.gateway import START_S

_GLANCE_S = 0.05


class Screen:
    """The rows of a command's terminal, and its keyboard."""

    def __init__(self, running: Terminal, columns: int, lines: int) -> None:
        self._running = running
        self._drawn = _Drawn(columns, lines, running)
        self._stream = pyte.Stream(self._drawn)

    @property
    def rows(self) -> list[str]:
        """Without the empty ones below."""
        rows = [text.rstrip() for text in self._drawn.display]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    @property
    def text(self) -> str:
        return "\n".join(self.rows)

    @property
    def printed(self) -> str:
        """All that ever came, escape codes and all."""
        return self._running.printed

    def type(self, keys: str) -> None:
        self._running.type(keys)

    def clear(self) -> None:
        """Wipe everything off that was there, as a reset does; the cursor goes up."""
        self._drawn.reset()

    def shows(self, text: str) -> str:
        """Wait until it stands there; returns all of the screen."""
        self.waits_until(lambda: text in self.text, text)
        return self.text

    def waits_until(self, condition: Callable[[], bool], wanted: str = "it") -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            assert time.monotonic() < deadline, f"{wanted!r} did not come; there is:\n{self.text}"
            self._draw()

    def exit_status(self) -> int:
        status = self._running.exit_status()
        self._stream.feed(self._running.screen)
        return status

    def _draw(self) -> None:
        more = self._running.more(_GLANCE_S)
        if more is not None:
            self._stream.feed(more)


class _Drawn(pyte.Screen):
    """Answers who asks where the cursor stands, as terminals do."""

    def __init__(self, columns: int, lines: int, running: Terminal) -> None:
        super().__init__(columns, lines)
        self._running = running

    def write_process_input(self, data: str) -> None:
        self._running.type(data)


@contextmanager
def screen(
    *arguments: str,
    url: str | None,
    columns: int = 80,
    lines: int = 40,
    more: dict[str, str] | None = None,
    command: tuple[str, ...] = BULKHEAD,
) -> Iterator[Screen]:
    """Start a command on a terminal of so many columns."""
    with terminal(
        *arguments, url=url, size=(lines, columns), more=more, command=command
    ) as running:
        yield Screen(running, columns, lines)
