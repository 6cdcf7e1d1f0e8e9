"""What was found as plain text to send to somebody: without paths, names of machines or users."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway import VERSION
from gateway.doctor.memory_check.figures import Machine
from gateway.doctor.memory_check.line import Line
from gateway.system.notation import format_size

BEGIN: Final = "----- bulkhead memory report -----"
END: Final = "----- end of the report -----"
# In quotes they may have spaces.
_QUOTED: Final = re.compile(r"(['\"])~?/[^'\"\n]*\1")
_PATH: Final = re.compile(r"(?<![\w.])~?/[^\s'\",;()]*[^\s'\",;().]")


def report(machine: Machine, lines: Sequence[Line]) -> str:
    """A block between two lines."""
    text = "\n".join((*_head(machine), *map(_line, lines)))
    return "\n".join((BEGIN, anonymous(text, platform.node(), str(Path.home())), END))


def anonymous(text: str, host_name: str, home: str) -> str:
    """Without paths, which have names of users in them, and without the machine's name."""
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


def _line(line: Line) -> str:
    return f"[{line.verdict}] {line.part}: {line.assumed}. Found: {line.found}."
