"""The check of `doctor --memory`: compares Bulkhead's assumptions on memory with this machine.

The parts of the check are measured in turn, each with a deadline. If a part fails, the other parts
are measured all the same.
"""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gateway import VERSION
from gateway.doctor import memory_judgement as judgement
from gateway.doctor import memory_measuring as measuring
from gateway.doctor.errands import ProbeError
from gateway.doctor.finding import Finding, ok, warning
from gateway.doctor.installation import Installation
from gateway.doctor.memory_judgement import LineVerdict, Machine, ReportLine
from gateway.system.memory import BackEnd
from gateway.system.notation import format_size

BEGIN: Final = "----- bulkhead memory report -----"
END: Final = "----- end of the report -----"
# A path in quotes may have spaces.
_QUOTED: Final = re.compile(r"(['\"])~?/[^'\"\n]*\1")
_PATH: Final = re.compile(r"(?<![\w.])~?/[^\s'\",;()]*[^\s'\",;().]")


def report(machine: Machine, lines: Sequence[ReportLine]) -> str:
    """The report as one text, between the lines `BEGIN` and `END`, without private names."""
    text = "\n".join((*_head(machine), *map(_line, lines)))
    return "\n".join((BEGIN, anonymous(text, platform.node(), str(Path.home())), END))


def anonymous(text: str, host_name: str, home: str) -> str:
    """The text without paths, which contain names of users, and without the machine's name."""
    if len(home) > 1:
        text = text.replace(home, "/home")
    text = _PATH.sub("(path)", _QUOTED.sub("(path)", text))
    short = host_name.partition(".")[0]
    for name in (host_name, short):
        if name:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "(host)", text)
    return text


def _head(machine: Machine) -> tuple[str, ...]:
    environment = machine.environment
    versions = "MLX could not be asked"
    if environment is not None:
        versions = (
            f"Python {environment.python_version}, mlx {environment.mlx_version}, "
            f"mlx-lm {environment.mlx_lm_version}"
        )
    device = ", ".join(f"{key} {value}" for key, value in sorted(machine.device.items()))
    return (
        f"bulkhead {VERSION}, {versions}",
        f"{machine.system}, back end {machine.back_end}",
        f"device: {device or 'unknown'}",
        f"memory: {format_size(machine.total_bytes)}, "
        f"{format_size(machine.available_bytes)} available, "
        f"pressure {machine.pressure or 'unknown'}, "
        f"iogpu.wired_limit_mb {_or_none(machine.wired_limit_mb)}",
    )


def _or_none(value: int | None) -> str:
    return "not there" if value is None else str(value)


def _line(line: ReportLine) -> str:
    return f"[{line.verdict}] {line.part}: {line.assumed}. Found: {line.found}."


NAME: Final = "measured memory"
# The time of all parts together, so that the whole command takes two minutes.
_ALL_S: Final = 105.0
_SEND: Final = "Send the report below: Bulkhead's assumptions may be wrong on machines like this."
_AGAIN: Final = "Try again on an idle machine; if the result is the same, send the report below."


class CheckPart(NamedTuple):
    """A part of the check. `look` gets the seconds that it may take: `longest_s` at most."""

    name: str
    longest_s: float
    look: Callable[[float], Iterator[ReportLine]]


class MemoryCheck:
    """Runs the parts of `doctor --memory`, and keeps their lines for the report."""

    def __init__(self) -> None:
        self._lines: list[ReportLine] = []
        self._machine = measuring.machine()
        self._parts: tuple[CheckPart, ...] = (
            CheckPart("process", 40.0, self._process),
            CheckPart("rights", 5.0, _rights),
            CheckPart("return", 30.0, _end_cleanly),
            CheckPart("return", 30.0, _end_by_kill),
            CheckPart("steps", 30.0, self._steps),
            CheckPart("attention", 30.0, self._attention),
        )
        if self._machine.back_end is not BackEnd.CPU:
            self._parts += (CheckPart("large array", 30.0, _join),)

    def look(self, _installation: Installation) -> Iterator[Finding]:
        deadline = time.monotonic() + _ALL_S
        for part in self._parts:
            for line in looked_at(part, deadline - time.monotonic()):
                self._lines.append(line)
                yield _finding(line)

    def report(self) -> str:
        """The report of the lines so far, as plain text."""
        return report(self._machine, self._lines)

    def _process(self, within_s: float) -> Iterator[ReportLine]:
        self._machine, figures = measuring.measure_process(within_s)
        yield from judgement.judge_working_set(self._machine)
        yield from judgement.judge_process(figures, self._machine.back_end)

    def _steps(self, within_s: float) -> Iterator[ReportLine]:
        figures = measuring.measure_steps(within_s)
        yield from judgement.judge_steps(figures, self._machine.back_end)

    def _attention(self, within_s: float) -> Iterator[ReportLine]:
        for figures in measuring.measure_attention(within_s):
            yield judgement.judge_attention(figures, self._machine.back_end)


def _rights(_within_s: float) -> Iterator[ReportLine]:
    yield from judgement.judge_rights(measuring.measure_rights())


def _join(within_s: float) -> Iterator[ReportLine]:
    yield judgement.judge_join(measuring.measure_join(within_s))


def _end_cleanly(within_s: float) -> Iterator[ReportLine]:
    figures = measuring.measure_return(within_s, killed=False)
    yield judgement.judge_return("a clean end", figures)


def _end_by_kill(within_s: float) -> Iterator[ReportLine]:
    figures = measuring.measure_return(within_s, killed=True)
    yield judgement.judge_return("SIGKILL", figures)


def looked_at(part: CheckPart, left_s: float) -> Iterator[ReportLine]:
    """Measure a part, and yield its lines. A failure of the part is a line, too."""
    try:
        if left_s <= 0:
            raise ProbeError("the parts before it took all of the time")
        yield from part.look(min(part.longest_s, left_s))
    except ProbeError as error:
        yield judgement.failed(part.name, " ".join(str(error).split()))
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        yield judgement.failed(part.name, why.rstrip("."))


def _finding(line: ReportLine) -> Finding:
    evidence = f"{line.assumed}; found: {line.found}."
    match line.verdict:
        case LineVerdict.AS_ASSUMED:
            return ok(NAME, evidence, subject=line.part)
        case LineVerdict.DIFFERS:
            return warning(NAME, evidence, _SEND, subject=line.part)
        case LineVerdict.UNKNOWN:
            return warning(NAME, evidence, _AGAIN, subject=line.part)
