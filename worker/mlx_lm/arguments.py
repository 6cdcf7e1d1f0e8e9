"""The classes into which mlx-lm and its kin read config.json, each with a type for every value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from traceback import walk_tb
from typing import Any, Final

_LIBRARIES: Final = ("mlx_lm.", "mlx_vlm.", "mlx_embeddings.")


def argument_classes(error: Exception) -> Iterator[tuple[Any, dict[str, Any] | None]]:
    """The classes of arguments that functions in the traceback worked with. A class whose arguments
    were being made comes with the table that they were made of.
    """
    for frame, _ in walk_tb(error.__traceback__):
        values = list(frame.f_locals.values())
        if frame.f_code.co_name == "from_dict" and is_dataclass(kind := values[0]):
            yield kind, frame.f_locals.get("params")
        # Layers keep their arguments.
        kept = [getattr(each, "__dict__", {}).get("args") for each in values]
        for kind in map(type, values + kept):
            if is_dataclass(kind) and kind.__module__.startswith(_LIBRARIES):
                yield kind, None
