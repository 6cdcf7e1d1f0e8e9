"""The trial of a grammar, in a process of its own. The kernel enforces its limits, except that of
memory on macOS.

llguidance's own limits bound the size of a compiled grammar and not the time of compiling: a
multiple of a large number takes minutes, and thousands of optional properties take twenty seconds.
A thread inside llguidance can't be ended, and a recursion that goes too deep ends the process.

The process runs this file as a script, without site-packages. A request waits for the process to
start, so next to nothing is imported at the top.
"""

from __future__ import annotations

import importlib
import resource
import signal
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import subprocess

# llguidance's limits for a grammar: about 20 MB for states of the lexer, milliseconds for a step.
LIMITS: Final = {
    "max_items_in_row": 1000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 20_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
}
# Steps of an answer that are tried. llguidance builds most tables of a grammar in the first steps.
STEPS: Final = 48
_CPU_S: Final = 0.5
# The longest wait for the process, however slow the machine is.
_LONGEST_S: Final = 20.0
_MEMORY_BYTES: Final = 2 << 30
_LOOK_S: Final = 0.02
# Compiled before the grammar that is measured: the first grammar of a process takes memory that
# all later grammars use, too.
_FIRST: Final = '{"type":"object","properties":{"a":{"pattern":"^[a-z]{1,9}$"},"b":{"enum":[1]}}}'


class TrialOutcome(NamedTuple):
    """`refusal`: why a grammar can't be compiled; None: it can. `bytes`: the most that it takes."""

    refusal: str | None
    bytes: int = 0


def try_grammar(grammar: str) -> TrialOutcome:
    """Compile a grammar in another process. The interpreter's lock is free meanwhile."""
    import subprocess
    from pathlib import Path

    import llguidance

    with subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(Path(llguidance.__file__).parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Otherwise CPython forks. On macOS, a process that has used Metal must not fork.
        close_fds=False,
    ) as process:
        try:
            output = _watched(process, grammar.encode())
        except BaseException:
            process.kill()
            raise
    if output is None:
        return TrialOutcome("it takes too long to compile")
    if process.returncode == 0:
        taken_bytes, _, refusal = output.decode(errors="replace").partition("\n")
        return TrialOutcome(refusal or None, int(taken_bytes))
    if process.returncode == -signal.SIGPROF:
        return TrialOutcome(f"it is too complex, and takes more than {_CPU_S:g} s to compile")
    return TrialOutcome("it is too complex, and takes too much memory to compile")


def _watched(process: subprocess.Popen[bytes], grammar: bytes) -> bytes | None:
    """What the process writes about the grammar. None: it takes too long. The process is killed if
    it does, or if it takes too much memory.
    """
    import contextlib
    import subprocess
    import time

    import psutil

    over_at = time.monotonic() + _LONGEST_S
    unsent: bytes | None = grammar
    while time.monotonic() < over_at:
        try:
            return process.communicate(unsent, _LOOK_S)[0]
        except subprocess.TimeoutExpired:
            unsent = None
        with contextlib.suppress(psutil.Error):
            if psutil.Process(process.pid).memory_info().rss > _MEMORY_BYTES:
                process.kill()
    process.kill()
    process.communicate()
    return None


def main(folder: str) -> None:
    """Compile the grammar on standard input. Write the bytes that it takes to standard output, and
    on the next line why it can't be compiled, or nothing. `folder` is llguidance's package: the
    library in it is imported alone, in a fifth of the package's time.
    """
    sys.path.append(folder)
    library = importlib.import_module("_lib")
    grammar = sys.stdin.buffer.read().decode()
    if sys.platform == "linux":
        # macOS has no such limit: there it is only watched.
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The signal ends the process even inside llguidance.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, _CPU_S)
    tokenizer = library.LLTokenizer("byte")

    def compiled(grammar: str) -> Any:
        limits = library.LLParserLimits(**LIMITS, verbose_errors=False)
        return library.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)

    first = compiled(library.LLMatcher.grammar_from_json_schema(_FIRST))
    before_bytes = _held_bytes()
    matcher = compiled(grammar)
    taken_bytes = _held_bytes() - before_bytes
    del first
    _walk(matcher)
    sys.stdout.buffer.write(f"{max(0, taken_bytes)}\n{matcher.get_error()}".encode())


if sys.platform == "linux":

    def _held_bytes() -> int:
        """The resident memory of this process, by proc(5). The peak would begin with that of the
        process that started this one (getrusage(2)).
        """
        with open("/proc/self/statm") as file:  # noqa: PTH123 # pathlib is imported for longer
            return int(file.read().split()[1]) * resource.getpagesize()
else:

    def _held_bytes() -> int:
        """The peak of this process's resident memory: macOS has no such file."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _walk(matcher: Any) -> None:
    """Have the matcher take the first tokens of one answer."""
    for step in range(STEPS):
        if matcher.is_stopped():
            return
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [index for index in range(bits.bit_length()) if bits >> index & 1]
        # Any allowed token will do, but not the first one each time.
        if not allowed or not matcher.consume_token(allowed[step * 7919 % len(allowed)]):
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
