"""Precautions for the GPU of a Mac.

**No command waits for a disk or for another rank**, as macOS ends commands that take 5 s. Where a
checkpoint has weights in another shape, mlx-lm stacks, casts or unpacks them in the same lazy
computation that reads them (mlx#3803, ollama#17998). `Reads` tells which arrays have to be read
first. A rank waits in a collective operation for the others (exo#948, exo#1429). In a prompt, a
long computation, these operations are evaluated by themselves (`keep_apart`). A token's step is
short, and goes on without a pause.

**The wired limit is set at most once**, while nothing computes. A change during work of the GPU
panics the machine (mlx#3186, mlx#3346). Libraries make such changes: mlx-lm does whenever it builds
or closes a BatchGenerator. So the function that they call does nothing, and only this module has
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

# MLX tells here, and nowhere else, of which arrays another one is computed: nodes by their
# operation, and edges.
_READ: Final = re.compile(r'(\d+) \[label ="Load"')
_READ_AS: Final = re.compile(r'^(\d+) -> "a(\d+)"$', re.MULTILINE)
# nanobind's bound on arguments by name is 1,024.
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
    """Arrays that MLX is to load from files, each until `take` has given it out."""

    def __init__(self) -> None:
        self._arrays: list[mx.array] = []
        # The same arrays, by the operation that reads them. None before the first `take`.
        self._unread: dict[str, mx.array] | None = None
        # The identities of all of them.
        self._all: frozenset[int] = frozenset()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the arrays that any library loads in the block."""
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
        """The arrays to read before this one is computed; none for an array that is only read."""
        if id(array) in self._all:
            return []
        if self._unread is None:
            # No other reference may keep arrays alive once they are used.
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


class _Prompt:
    """Whether the thread that owns MLX computes a prompt."""

    computes = False


_prompt: Final = _Prompt()


def keep_apart(model: Any) -> None:
    """Evaluate collective operations by themselves wherever this model computes a prompt. It
    replaces MLX's operations in this process.
    """
    for name in _COLLECTIVE:
        operation = getattr(mx.distributed, name)
        if not isinstance(operation, _Apart):
            setattr(mx.distributed, name, _Apart(operation))

    class Model(type(model)):  # type: ignore[misc]  # mlx-lm is untyped
        def __call__(self, tokens: mx.array, *arguments: Any, **options: Any) -> Any:
            before, _prompt.computes = _prompt.computes, tokens.shape[1] > 1
            try:
                return super().__call__(tokens, *arguments, **options)
            finally:
                _prompt.computes = before

    model.__class__ = Model


class _Apart:
    """One of MLX's collective operations."""

    def __init__(self, operation: Callable[..., mx.array]) -> None:
        self._operation = operation

    def __call__(self, *arguments: Any, **options: Any) -> mx.array:
        if not _prompt.computes:
            return self._operation(*arguments, **options)
        mx.eval([each for each in arguments if isinstance(each, mx.array)])
        result = self._operation(*arguments, **options)
        mx.eval(result)
        return result


_set_wired_limit: Final = mx.set_wired_limit


def _leave_limit(limit: int) -> int:
    """Do nothing, and answer like MLX's own function if no memory was ever wired."""
    return 0


mx.set_wired_limit = _leave_limit


class _Wiring:
    """The wired memory of this process."""

    bytes_ = 0

    def wire(self, wanted_bytes: int, device: Device) -> None:
        """Keep so many bytes resident, or as many as the device recommends, since MLX raises for
        more. Without a recommendation nothing can be wired.
        """
        most_bytes = min(wanted_bytes, device.recommended_working_set_bytes or 0)
        if most_bytes and not self.bytes_:
            synchronize()
            _set_wired_limit(most_bytes)
            self.bytes_ = most_bytes

    def undo(self) -> None:
        """Wire nothing any more. For the end, when nothing computes."""
        if self.bytes_:
            _set_wired_limit(0)
            self.bytes_ = 0


wiring: Final = _Wiring()


def synchronize() -> None:
    """Wait for all computations that this thread has begun.

    Raises:
        RuntimeError: one of them failed.
    """
    mx.synchronize(generation_stream)
    mx.synchronize()
