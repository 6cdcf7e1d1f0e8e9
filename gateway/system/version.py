"""The version of the installed distribution."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final


def _installed() -> str:
    try:
        return version("mlx-bulkhead")
    except PackageNotFoundError:
        return "unknown"


VERSION: Final = _installed()
