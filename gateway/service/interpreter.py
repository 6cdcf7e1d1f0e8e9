"""The interpreter that the service names: it has to be there after the next upgrade, too."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Final

# Homebrew: PREFIX/Cellar/NAME/VERSION goes with an upgrade, and PREFIX/opt/NAME leads to the new.
_CELLAR: Final = "Cellar"
_KEG_PARTS: Final = 3


def lasting(executable: str = sys.executable) -> str:
    """A path to this interpreter, or to the one that takes its place."""
    parts = Path(executable).parts
    if _CELLAR not in parts:
        return executable
    at = parts.index(_CELLAR)
    keg, within = parts[: at + _KEG_PARTS], parts[at + _KEG_PARTS :]
    link = Path(*parts[:at], "opt", *parts[at + 1 : at + 2])
    with contextlib.suppress(OSError):
        if within and link.samefile(Path(*keg)):
            return str(link.joinpath(*within))
    return executable
