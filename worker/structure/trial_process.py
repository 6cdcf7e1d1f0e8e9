"""What a process of `trial` runs: compiles the grammar from its standard input, and writes to its
standard output why it can't, if so.

A script of its own, which imports next to nothing: a request waits for its start.
"""

from __future__ import annotations

import importlib
import resource
import signal
import sys
from typing import Any, Final

_MEMORY_BYTES: Final = 2 << 30
_STEPS: Final = 48


def main(folder: str, cpu_s: str, *limits: str) -> None:
    """`folder` is llguidance's. Its package takes five times as long to import as what it is of."""
    sys.path.append(folder)
    library = importlib.import_module("_lib")
    grammar = sys.stdin.buffer.read().decode()
    if sys.platform == "linux":
        # macOS has no such limit.
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Ends the process, wherever it is.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, float(cpu_s))
    bounds = {name: int(value) for name, value in (each.split("=") for each in limits)}
    matcher = library.LLMatcher(
        library.LLTokenizer("byte"),
        grammar,
        log_level=0,
        limits=library.LLParserLimits(**bounds, verbose_errors=False),
    )
    _walk(matcher)
    sys.stdout.buffer.write(matcher.get_error().encode())


def _walk(matcher: Any) -> None:
    """Some steps of one answer: in the first ones most is built."""
    for step in range(_STEPS):
        if matcher.is_stopped():
            return
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [each for each in range(bits.bit_length()) if bits >> each & 1]
        # Any of them, but not the first one each time.
        if not allowed or not matcher.consume_token(allowed[step * 7919 % len(allowed)]):
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
