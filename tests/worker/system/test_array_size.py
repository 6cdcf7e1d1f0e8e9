"""MLX's fault for which arrays have a bound."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import mlx.core as mx
import pytest

from worker.system.memory import MOST_ELEMENTS, most_parts

_JOIN: Final = "from worker.errands.probe import join_arrays; print(join_arrays({}).wrong)"
# The process compiles kernels, and joins 4 GB.
_JOINED_S: Final = 120


def test_an_array_has_whole_parts_and_one_at_least() -> None:
    assert [most_parts(elements) for elements in (0, 1, 1 << 20, 1 << 30, 1 << 40)] == [
        MOST_ELEMENTS,
        MOST_ELEMENTS,
        2047,
        1,
        1,
    ]


# With CUDA alone, as nobody has seen this on a Mac: `bulkhead doctor --mac` looks there.
@pytest.mark.skipif(not mx.cuda.is_available(), reason="it is a fault of MLX's kernels for CUDA")
@pytest.mark.xfail(strict=True, reason="mx.concatenate is wrong beyond 2^31 elements (MLX 0.32.4)")
def test_mlx_joins_arrays_to_any_size() -> None:
    # A process of its own: after an illegal access to memory MLX can't go on.
    command = [sys.executable, "-c", _JOIN.format(MOST_ELEMENTS + (1 << 26))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_JOINED_S)
    assert done.stdout == "0\n"
