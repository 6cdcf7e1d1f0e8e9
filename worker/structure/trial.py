"""Compiles a grammar in a process of its own, to find out whether that ends.

llguidance's limits bound what it builds, but not how long it thinks: a number that must be a
multiple of another keeps it busy for minutes, and thousands of optional properties for twenty
seconds. No thread can be ended in there, and what recurses too deep ends the process. So a grammar
is compiled here first, under a limit that the kernel keeps.

Imports nothing but llguidance and the standard library, for the sake of its start.
"""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import llguidance
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

CPU_S: Final = 0.5
_MEMORY_BYTES: Final = 2 << 30
# However slow the machine is: nobody waits longer.
_LONGEST_S: Final = 20.0
_STEPS: Final = 48
_FOLDERS: Final = [str(Path(llguidance.__file__).parents[1]), str(Path(__file__).parents[2])]
_COMMAND: Final = (
    "import sys; sys.path += sys.argv[1:]; from worker.structure import trial; trial.main()"
)


def limits() -> LLParserLimits:
    """Of what a grammar may take: some 20 MB of a lexer's states, and milliseconds of a step."""
    return LLParserLimits(
        max_items_in_row=1000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=50_000,
        step_max_items=20_000,
        max_lexer_states=20_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def refusal(grammar: str) -> str | None:
    """Why a grammar can't be compiled; None: it can. Takes a tenth of a second and `CPU_S` more at
    most, with the interpreter's lock released.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _COMMAND, *_FOLDERS],
            input=grammar.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "It takes too long to compile."
    if done.returncode == 0:
        return done.stdout.decode(errors="replace") or None
    if done.returncode == -signal.SIGPROF:
        return f"It is too complex: it takes more than {CPU_S:g} s to compile."
    return "It is too complex: it takes too much memory to compile."


def main() -> None:
    """A grammar from standard input; to standard output why not, if it can't be compiled."""
    grammar = sys.stdin.buffer.read().decode()
    # macOS knows no such limit.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Ends the process, wherever it is.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0, limits=limits())
    _walk(matcher)
    sys.stdout.write(matcher.get_error())


def _walk(matcher: LLMatcher) -> None:
    """Some steps of one answer: the first ones are where most is built."""
    random_ = random.Random(1)  # noqa: S311
    for _ in range(_STEPS):
        if matcher.is_stopped():
            return
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [each for each in range(bits.bit_length()) if bits >> each & 1]
        if not allowed or not matcher.consume_token(random_.choice(allowed)):
            return
