"""Probes of processes: their priorities, speed and text, launchd's domains, their environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import psutil

from gateway.config.model_folders import DEMO_FOLDER
from gateway.doctor.errands import ErrandName, Probe, ProbeError, run_errand
from gateway.doctor.finding import Observation
from gateway.service.definition import ServiceError
from gateway.service.init_system import run
from gateway.system.child import Child
from protocol.errands import (
    Compute,
    Generated,
    Import,
    Imported,
    Measure,
    Measured,
    Rate,
    SameText,
)

_DEMO: Final = str(DEMO_FOLDER)
_NICER: Final = ("nice", "-n", "10")
_QOS: Final = {
    "as usual": (),
    "nice 10": _NICER,
    "utility": ("taskpolicy", "-c", "utility"),
    "background": ("taskpolicy", "-c", "background"),
}


def look_at_imports(within_s: float) -> Iterator[Observation]:
    # The first reads the files from disk, and doesn't count.
    _imports_s((), within_s)
    texts = []
    for name, prefix in _QOS.items():
        has_program = not prefix or shutil.which(prefix[0]) is not None
        took = f"{_imports_s(prefix, within_s):.1f} s" if has_program else "not here"
        texts.append(f"{name} {took}")
    yield Observation(", ".join(texts))


def _imports_s(prefix: Sequence[str], within_s: float) -> float:
    began = time.monotonic()
    with Probe(within_s, prefix) as probe:
        probe.environment()
        probe.ask(Import(), Imported)
        return time.monotonic() - began


_COMPUTE_S: Final = 3.0
# The slower makes this share of the faster one's steps, since other work on the machine counts too.
_EVEN: Final = 0.5


def look_at_two_workers(within_s: float) -> Iterator[Observation]:
    with Probe(within_s) as first, Probe(within_s) as second, Probe(within_s, _NICER) as nicer:
        for probe in (first, second, nicer):
            probe.environment()
        (alone,) = _rates(first)
        equal = _rates(first, second)
        unequal = _rates(first, nicer)
    even = min(equal) >= _EVEN * max(equal)
    yield Observation(
        f"{alone:.0f} steps/s alone; {equal[0]:.0f} and {equal[1]:.0f} at equal nice; "
        f"{unequal[0]:.0f} and {unequal[1]:.0f} beside nice 10",
        even,
    )


def _rates(*probes: Probe) -> list[float]:
    """The steps/s of each, while all compute at once."""
    for probe in probes:
        probe.send(Compute(_COMPUTE_S))
    return [probe.answer(Rate).steps_per_s for probe in probes]


_TOKENS: Final = 128
_LONG_TOKENS: Final = 8_000


def look_at_speed(within_s: float) -> Iterator[Observation]:
    asked = Measure(_DEMO, "Once upon a time", 1 + _TOKENS, 2, _LONG_TOKENS, within_s / 4)
    measured = msgspec.json.decode(_answer("measure", asked, within_s), type=Measured)
    yield Observation(
        f"the demo model makes {_TOKENS / measured.seconds:.0f} tokens/s, and reads "
        f"{measured.long_tokens:,} at {measured.long_tokens / measured.long_seconds:.0f}"
    )


def look_at_greedy_text(within_s: float) -> Iterator[Observation]:
    asked = Generated(_DEMO, tuple(f"Tell me {index} stories." for index in range(2, 10)), 100)
    comparison = msgspec.json.decode(_answer("compare", asked, within_s), type=SameText)
    yield Observation(f"{comparison.same} of {comparison.of} texts of 100 tokens are the same")


def _answer(name: ErrandName, asked: msgspec.Struct, within_s: float) -> bytes:
    outcome = run_errand(name, asked, None, within_s)
    if outcome.failure is not None or not outcome.lines:
        raise ProbeError(outcome.failure or "no answer")
    return outcome.lines[-1]


def look_at_launchctl(_within_s: float) -> Iterator[Observation]:
    domains = {"gui": f"gui/{os.getuid()}", "user": f"user/{os.getuid()}", "system": "system"}
    try:
        session = run("launchctl", "managername").printed.strip()
        statuses = {
            name: run("launchctl", "print", domain).status for name, domain in domains.items()
        }
    except ServiceError as error:
        raise ProbeError(str(error)) from error
    text = ", ".join(f"{name} {number}" for name, number in statuses.items())
    holds = statuses["user"] == statuses["system"] == 0 and statuses["gui"] in (0, 112, 125)
    yield Observation(f"{text}, in a session of the kind {session}", holds)


_MARK: Final = "BULKHEAD_MAC_PROBE"
_HOMEBREW: Final = "/opt/homebrew/bin"
_WAITS: Final = "echo; read x"
_SAYS_S: Final = 30.0


def look_at_environment(_within_s: float) -> Iterator[Observation]:
    brewed = shutil.which("bash", path=_HOMEBREW)
    shown = {
        "own Python": _shows([sys.executable, "-c", "print(flush=True); input()"]),
        "sh": _shows(["/bin/sh", "-c", _WAITS]),
        "Homebrew's bash": None if brewed is None else _shows([brewed, "-c", _WAITS]),
    }
    words = {True: "shown", False: "hidden", None: "not here"}
    on_mac = sys.platform == "darwin"
    holds = shown["own Python"] is True and shown["sh"] is not on_mac
    yield Observation(", ".join(f"{name} {words[flag]}" for name, flag in shown.items()), holds)


def _shows(command: list[str]) -> bool:
    """Whether the environment of such a child can be read, once its program runs and says so."""
    environment = {**os.environ, _MARK: "1"}
    with Child(command, "shown", environment=environment, stderr=subprocess.DEVNULL) as child:
        try:
            child.next_line(_SAYS_S)
            return psutil.Process(child.pid).environ().get(_MARK) == "1"
        except (TimeoutError, psutil.Error):
            return False
