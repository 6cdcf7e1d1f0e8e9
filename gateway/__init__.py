"""The process that speaks HTTP and keeps the workers. It never imports MLX."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final


def _installed() -> str:
    try:
        return version("mlx-bulkhead")
    except PackageNotFoundError:
        return "unknown"


VERSION: Final = _installed()
