"""Collective operations in a prompt are evaluated by themselves.

A rank waits in them for the others. In the middle of a long computation a Mac's GPU would wait
along, and macOS ends commands that take 5 s (exo#948, exo#1429). A token's step is short, and goes
on without a pause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import mlx.core as mx

_OPERATIONS: Final = (
    "all_sum",
    "all_gather",
    "all_max",
    "all_min",
    "sum_scatter",
    "send",
    "recv",
    "recv_like",
)


class _Apartness:
    """Of the thread that owns MLX."""

    in_prompt = False


_now: Final = _Apartness()


def keep_apart(model: Any) -> None:
    """In this process, and wherever this model computes a prompt."""
    for name in _OPERATIONS:
        operation = getattr(mx.distributed, name)
        if not isinstance(operation, _Apart):
            setattr(mx.distributed, name, _Apart(operation))

    class Model(type(model)):  # type: ignore[misc]  # mlx-lm is untyped
        def __call__(self, tokens: mx.array, *arguments: Any, **options: Any) -> Any:
            with _in_prompt(tokens.shape[1] > 1):
                return super().__call__(tokens, *arguments, **options)

    model.__class__ = Model


class _Apart:
    """One of MLX's operations."""

    def __init__(self, operation: Callable[..., mx.array]) -> None:
        self._operation = operation

    def __call__(self, *arguments: Any, **options: Any) -> mx.array:
        if not _now.in_prompt:
            return self._operation(*arguments, **options)
        mx.eval([each for each in arguments if isinstance(each, mx.array)])
        result = self._operation(*arguments, **options)
        mx.eval(result)
        return result


@contextmanager
def _in_prompt(begins: bool) -> Iterator[None]:
    _now.in_prompt, before = begins, _now.in_prompt
    try:
        yield
    finally:
        _now.in_prompt = before
