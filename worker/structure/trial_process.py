"""What a process of `trial` runs: compiles the grammar from its standard input, and writes to its
standard output how many bytes that takes, and on the next line why it can't be, if so.

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
# What the first one of a process takes is shared by all.
_FIRST: Final = '{"type":"object","properties":{"a":{"pattern":"^[a-z]{1,9}$"},"b":{"enum":[1]}}}'


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
    tokenizer = library.LLTokenizer("byte")

    def compiled(grammar: str) -> Any:
        limits = library.LLParserLimits(**bounds, verbose_errors=False)
        return library.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)

    first = compiled(library.LLMatcher.grammar_from_json_schema(_FIRST))
    before_bytes = _held_bytes()
    matcher = compiled(grammar)
    taken_bytes = _held_bytes() - before_bytes
    del first
    _walk(matcher)
    sys.stdout.buffer.write(f"{max(0, taken_bytes)}\n{matcher.get_error()}".encode())


def _held_bytes() -> int:
    """Of memory that is resident: proc(5). On macOS, where no file has it, at the highest so far;
    Linux's peak begins with that of the process that has started this one (getrusage(2)).
    """
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open("/proc/self/statm") as file:  # noqa: PTH123 # pathlib is imported for longer
        return int(file.read().split()[1]) * resource.getpagesize()


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
