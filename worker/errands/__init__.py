"""Errands: jobs that a worker's process does for a command, instead of serving."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import version
from typing import IO, Any, TypeVar

import msgspec
from msgspec import Struct

from protocol.errands import Environment

T = TypeVar("T", bound=Struct)


class Errand:
    """Reads orders from standard input, and writes answers to standard output. Making an
    errand sends what libraries print to standard error, so make the errand before they are
    imported.
    """

    def __init__(self) -> None:
        self._answers: IO[bytes] = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def read(self, kind: type[T]) -> T:
        """The order of type `kind` that standard input has up to its end."""
        return msgspec.json.decode(sys.stdin.buffer.read(), type=kind)

    def read_line(self, kind: type[T]) -> T:
        """The order of type `kind` on the first line of standard input. From now on this process
        ends when standard input ends, as it does with the process that gave the order.
        """
        line = sys.stdin.buffer.readline()
        threading.Thread(target=_end_with_input, name="input", daemon=True).start()
        return msgspec.json.decode(line, type=kind)

    def orders(self, kind: Any) -> Iterator[Any]:
        """The orders of type `kind` on standard input, one a line."""
        decoder = msgspec.json.Decoder(kind)
        for line in sys.stdin.buffer:
            yield decoder.decode(line)

    def answer_versions(self) -> None:
        """Answer with the versions of Python, MLX and mlx-lm, once the imports are done."""
        self.answer(Environment(platform.python_version(), version("mlx"), version("mlx-lm")))

    def answer(self, content: Struct) -> None:
        self._answers.write(msgspec.json.encode(content) + b"\n")
        self._answers.flush()


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    # Nobody reads the answers, and a computation on the GPU may take long.
    os._exit(1)
