"""Whether a grammar can be compiled within bounds: tried in a process of its own.

llguidance's limits bound what it builds, but not how long it thinks: a multiple of a large number
keeps it busy for minutes, and thousands of optional properties for twenty seconds. No thread can be
ended in there, and what recurses too deep ends its process. So a grammar is compiled in another one
first, under a limit that the kernel keeps.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import llguidance
from llguidance import LLParserLimits

from worker.structure import trial_process

_CPU_S: Final = 0.5
# However slow the machine is, nobody waits longer.
_LONGEST_S: Final = 20.0
# Some 20 MB of a lexer's states, and milliseconds of a step.
_LIMITS: Final = {
    "max_items_in_row": 1000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 20_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
}


class Outcome(NamedTuple):
    """Why a grammar can't be compiled, None: it can; and what it takes then, at most."""

    refusal: str | None
    bytes: int = 0


def limits() -> LLParserLimits:
    """Of what any grammar may take."""
    # The bounds are no booleans, as types without names have it.
    return LLParserLimits(**_LIMITS, verbose_errors=False)  # type: ignore[arg-type]


def outcome(grammar: str) -> Outcome:
    """The interpreter's lock is free meanwhile."""
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-I",
                "-S",
                trial_process.__file__,
                str(Path(llguidance.__file__).parent),
                str(_CPU_S),
                *(f"{name}={value}" for name, value in _LIMITS.items()),
            ],
            input=grammar.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LONGEST_S,
            check=False,
            # Else CPython forks on macOS, where a process that has touched Metal must not.
            close_fds=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome("it takes too long to compile")
    if done.returncode == 0:
        taken_bytes, _, refusal = done.stdout.decode(errors="replace").partition("\n")
        return Outcome(refusal or None, int(taken_bytes))
    if done.returncode == -signal.SIGPROF:
        return Outcome(f"it is too complex, and takes more than {_CPU_S:g} s to compile")
    return Outcome("it is too complex, and takes too much memory to compile")
