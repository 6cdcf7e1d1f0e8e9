"""What macOS keeps from a program although its permissions allow it.

Folders such as Desktop and every removable disk want somebody's agreement at the screen, and what
launchd starts without one is never asked: it gets EPERM, where permissions give EACCES.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator


class DeniedError(ValueError):
    """The system keeps files from this program; the text is a sentence that says what to do."""


def denied(error: BaseException) -> str | None:
    """A sentence that says what to do; None if that isn't what is wrong."""
    for each in _chain(error):
        if isinstance(each, OSError) and each.errno == errno.EPERM:
            return _sentence(each.filename)
    return None


def is_denied(path: str | os.PathLike[str]) -> bool:
    """Whether not even a look at it is allowed."""
    try:
        os.stat(path)  # noqa: PTH116 - a path that is no good raises the same in both.
    except (OSError, ValueError) as error:
        return denied(error) is not None
    return False


def _sentence(path: object) -> str:
    return (
        f"The system keeps {path or 'its files'} from this program, although permissions allow it "
        "(operation not permitted). On macOS: System Settings, Privacy & Security, Full Disk "
        f"Access, add {os.path.realpath(sys.executable)}, then `bulkhead service restart`."
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
