"""Precautions for the GPU of a Mac.

**No command waits for a disk or for another rank**, as macOS ends commands that take 5 s. If a
checkpoint has weights in another shape, mlx-lm stacks, casts or unpacks them in the same lazy
computation that reads them (mlx#3803, ollama#17998). `Reads` tells which arrays have to be read
first. In a collective operation a rank waits for other ranks (exo#948, exo#1429). A prompt is a
long computation, so its collective operations are evaluated by themselves (`evaluate_apart`). The
step of a token is short, and remains one computation.

**The wired limit is set at most once**, while nothing computes. A change while the GPU works panics
the machine (mlx#3186, mlx#3346). Libraries make such changes: mlx-lm does whenever it builds or
closes a BatchGenerator. So the function that libraries call does nothing, and only this module has
MLX's own function.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import mlx.core as mx
from mlx_lm.generate import generation_stream

from protocol.life import Device

# Only in an exported graph does MLX tell from which arrays another array is computed. These
# patterns find nodes that read files, and edges from such a node to a named array.
_READ: Final = re.compile(r'(\d+) \[label ="Load"')
_READ_AS: Final = re.compile(r'^(\d+) -> "a(\d+)"$', re.MULTILINE)
# nanobind takes at most 1,024 arguments by name.
_NAMED_AT_ONCE: Final = 1000
_COLLECTIVE: Final = (
    "all_sum",
    "all_gather",
    "all_max",
    "all_min",
    "sum_scatter",
    "send",
    "recv",
    "recv_like",
)


class Reads:
    """The arrays that MLX will read from files, each until `sources_of` has given it out."""

    def __init__(self) -> None:
        self._arrays: list[mx.array] = []
        # The arrays by the operation that reads each from a file. None before `sources_of`.
        self._unread: dict[str, mx.array] | None = None
        # The identities of all arrays that were noted.
        self._all: frozenset[int] = frozenset()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Note all arrays that any library loads in the `with` block."""
        load = mx.load

        def record(*arguments: Any, **options: Any) -> Any:
            loaded = load(*arguments, **options)
            arrays = loaded[0] if isinstance(loaded, tuple) else loaded
            if isinstance(arrays, dict):
                self._arrays += arrays.values()
            return loaded

        mx.load = record
        try:
            yield
        finally:
            mx.load = load
            self._all = frozenset(map(id, self._arrays))

    def sources_of(self, array: mx.array) -> list[mx.array]:
        """Take the arrays to read before `array` is computed; none if `array` itself is read."""
        if id(array) in self._all:
            return []
        if self._unread is None:
            # Drop the list, so that it keeps no arrays alive once they are used.
            self._unread, self._arrays = _by_operation(self._arrays), []
        sources = (self._unread.pop(item, None) for item in _READ.findall(_graph(array)))
        return [source for source in sources if source is not None]


def _by_operation(arrays: list[mx.array]) -> dict[str, mx.array]:
    by_operation = {}
    for begin in range(0, len(arrays), _NAMED_AT_ONCE):
        part = arrays[begin : begin + _NAMED_AT_ONCE]
        graph = _graph(**{f"a{index}": array for index, array in enumerate(part)})
        by_operation.update(
            {operation: part[int(index)] for operation, index in _READ_AS.findall(graph)}
        )
    return by_operation


def _graph(*arrays: mx.array, **named: mx.array) -> str:
    text = io.StringIO()
    mx.export_to_dot(text, *arrays, **named)
    return text.getvalue()


class _Prompt:
    """Whether the thread that owns MLX computes a prompt."""

    computes = False


_prompt: Final = _Prompt()


def evaluate_apart(model: Any) -> None:
    """Evaluate collective operations by themselves while this model computes a prompt. This
    replaces MLX's operations in the whole process.
    """
    for name in _COLLECTIVE:
        operation = getattr(mx.distributed, name)
        if not isinstance(operation, _SeparateOperation):
            setattr(mx.distributed, name, _SeparateOperation(operation))

    class SeparatingModel(type(model)):  # type: ignore[misc]  # mlx-lm is untyped
        def __call__(self, tokens: mx.array, *arguments: Any, **options: Any) -> Any:
            before, _prompt.computes = _prompt.computes, tokens.shape[1] > 1
            try:
                return super().__call__(tokens, *arguments, **options)
            finally:
                _prompt.computes = before

    model.__class__ = SeparatingModel


class _SeparateOperation:
    """A collective operation of MLX's that is evaluated by itself in a prompt."""

    def __init__(self, operation: Callable[..., mx.array]) -> None:
        self._operation = operation

    def __call__(self, *arguments: Any, **options: Any) -> mx.array:
        if not _prompt.computes:
            return self._operation(*arguments, **options)
        mx.eval([argument for argument in arguments if isinstance(argument, mx.array)])
        result = self._operation(*arguments, **options)
        mx.eval(result)
        return result


_set_wired_limit: Final = mx.set_wired_limit


def _ignore_limit(limit: int) -> int:
    """Do nothing. Returns the former limit, as MLX's own function does: 0 if no memory was ever
    wired.
    """
    return 0


mx.set_wired_limit = _ignore_limit


class _Wiring:
    """The wired memory of this process."""

    bytes_ = 0

    def wire(self, wanted_bytes: int, device: Device) -> None:
        """Wire `wanted_bytes`, or as many bytes as the device recommends, since MLX raises for
        more. Without a recommendation nothing is wired.
        """
        most_bytes = min(wanted_bytes, device.recommended_working_set_bytes or 0)
        if most_bytes and not self.bytes_:
            synchronize()
            _set_wired_limit(most_bytes)
            self.bytes_ = most_bytes

    def undo(self) -> None:
        """Wire nothing any more. The caller does this at its end, when nothing computes."""
        if self.bytes_:
            _set_wired_limit(0)
            self.bytes_ = 0


wiring: Final = _Wiring()


def synchronize() -> None:
    """Wait for all computations that this thread has begun.

    Raises:
        RuntimeError: a computation failed.
    """
    mx.synchronize(generation_stream)
    mx.synchronize()
