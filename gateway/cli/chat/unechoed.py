"""What is typed while something is printed."""

from __future__ import annotations

import contextlib
import sys
import termios
from collections.abc import Iterator
from typing import Final

# Where termios has them.
_INPUT: Final = 0
_LOCAL: Final = 3
_CHARACTERS: Final = 6


@contextlib.contextmanager
def unechoed() -> Iterator[None]:
    """Keep what is typed out of what is printed: it waits for whoever reads next, as it was typed.
    Ctrl-C is heard at once.
    """
    terminal = sys.stdin.fileno()
    try:
        before = termios.tcgetattr(terminal)
    except termios.error:
        yield
        return
    quiet = termios.tcgetattr(terminal)
    # Lines aren't edited here but at the prompt, which wants the very keys.
    quiet[_INPUT] &= ~termios.ICRNL
    quiet[_LOCAL] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    quiet[_CHARACTERS][termios.VMIN] = 1
    quiet[_CHARACTERS][termios.VTIME] = 0
    termios.tcsetattr(terminal, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
