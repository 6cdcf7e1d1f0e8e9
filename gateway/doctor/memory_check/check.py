"""All parts in turn, each in its time; none can keep the others from being made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from gateway.doctor.finding import Finding, ok, warning
from gateway.doctor.installation import Installation
from gateway.doctor.memory_check import judgement, measuring
from gateway.doctor.memory_check.line import Line, Verdict
from gateway.doctor.memory_check.process import ProbeError
from gateway.doctor.memory_check.report import report

NAME: Final = "measured memory"
# Two minutes in all, with what comes before and after.
_ALL_S: Final = 105.0
_SEND: Final = "Send the report below: what Bulkhead counts on may be wrong on machines like this."
_AGAIN: Final = "Try again on an idle machine; if it stays so, send the report below."


class Part(NamedTuple):
    """`look` gets the seconds that it may take."""

    name: str
    longest_s: float
    look: Callable[[float], Iterator[Line]]


class MemoryCheck:
    """Of one run: what was found is kept for the report."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._machine = measuring.machine()
        self._parts = (
            Part("process", 40.0, self._process),
            Part("rights", 5.0, _rights),
            Part("return", 30.0, _end_cleanly),
            Part("return", 30.0, _end_by_kill),
            Part("steps", 30.0, self._steps),
            Part("attention", 30.0, self._attention),
        )

    def look(self, _installation: Installation) -> Iterator[Finding]:
        deadline = time.monotonic() + _ALL_S
        for part in self._parts:
            for line in looked_at(part, deadline - time.monotonic()):
                self._lines.append(line)
                yield _finding(line)

    def report(self) -> str:
        """Of what was found by now: a block of plain text."""
        return report(self._machine, self._lines)

    def _process(self, within_s: float) -> Iterator[Line]:
        self._machine, figures = measuring.measure_process(within_s)
        yield from judgement.judge_working_set(self._machine)
        yield from judgement.judge_process(figures, self._machine.back_end)

    def _steps(self, within_s: float) -> Iterator[Line]:
        figures = measuring.measure_steps(within_s)
        yield from judgement.judge_steps(figures, self._machine.back_end)

    def _attention(self, within_s: float) -> Iterator[Line]:
        for figures in measuring.measure_attention(within_s):
            yield judgement.judge_attention(figures, self._machine.back_end)


def _rights(_within_s: float) -> Iterator[Line]:
    yield from judgement.judge_rights(measuring.measure_rights())


def _end_cleanly(within_s: float) -> Iterator[Line]:
    figures = measuring.measure_return(within_s, killed=False)
    yield judgement.judge_return("a clean end", figures)


def _end_by_kill(within_s: float) -> Iterator[Line]:
    figures = measuring.measure_return(within_s, killed=True)
    yield judgement.judge_return("SIGKILL", figures)


def looked_at(part: Part, left_s: float) -> Iterator[Line]:
    """A part that fails is a line."""
    try:
        if left_s <= 0:
            raise ProbeError("the parts before it took all of the time")
        yield from part.look(min(part.longest_s, left_s))
    except ProbeError as error:
        yield judgement.failed(part.name, " ".join(str(error).split()))
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        yield judgement.failed(part.name, why.rstrip("."))


def _finding(line: Line) -> Finding:
    evidence = f"{line.assumed}; found: {line.found}."
    match line.verdict:
        case Verdict.AS_ASSUMED:
            return ok(NAME, evidence, subject=line.part)
        case Verdict.DIFFERS:
            return warning(NAME, evidence, _SEND, subject=line.part)
        case Verdict.UNKNOWN:
            return warning(NAME, evidence, _AGAIN, subject=line.part)
