"""What a model's weights are computed of is read from the disk before it is computed on.

Where a checkpoint has them in another shape, mlx-lm stacks, casts or unpacks them, as a part of the
same lazy computation that reads them. On Metal the GPU's command would then wait for the disk, and
macOS ends commands that take 5 s (mlx#3803, ollama#17998).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import mlx.core as mx

# The one place where MLX tells what an array is computed of: nodes by their operation, and edges.
_READ: Final = re.compile(r'(\d+) \[label ="Load"')
_READ_AS: Final = re.compile(r'^(\d+) -> "a(\d+)"$', re.MULTILINE)
# nanobind's bound on arguments by name is 1,024.
_NAMED_AT_ONCE: Final = 1000


class Reads:
    """Arrays that MLX was to load from files, as long as nobody has taken them."""

    def __init__(self) -> None:
        self._arrays: list[mx.array] = []
        # Of these, by the operation that reads them. None: nobody has asked for any.
        self._unread: dict[str, mx.array] | None = None
        # By their identity.
        self._all: frozenset[int] = frozenset()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """What is loaded meanwhile, by any library."""
        load = mx.load

        def note(*arguments: Any, **options: Any) -> Any:
            found = load(*arguments, **options)
            arrays = found[0] if isinstance(found, tuple) else found
            if isinstance(arrays, dict):
                self._arrays += arrays.values()
            return found

        mx.load = note
        try:
            yield
        finally:
            mx.load = load
            self._all = frozenset(map(id, self._arrays))

    def take(self, array: mx.array) -> list[mx.array]:
        """What has to be read before an array is computed; nothing for one that is only read."""
        if id(array) in self._all:
            return []
        if self._unread is None:
            # Nothing else is to keep what was computed on.
            self._unread, self._arrays = _by_operation(self._arrays), []
        found = (self._unread.pop(each, None) for each in _READ.findall(_graph(array)))
        return [each for each in found if each is not None]


def _by_operation(arrays: list[mx.array]) -> dict[str, mx.array]:
    found = {}
    for begin in range(0, len(arrays), _NAMED_AT_ONCE):
        part = arrays[begin : begin + _NAMED_AT_ONCE]
        graph = _graph(**{f"a{at}": each for at, each in enumerate(part)})
        found.update({operation: part[int(at)] for operation, at in _READ_AS.findall(graph)})
    return found


def _graph(*arrays: mx.array, **named: mx.array) -> str:
    text = io.StringIO()
    mx.export_to_dot(text, *arrays, **named)
    return text.getvalue()
