"""Why workers died, and whether those of a model die of one error again and again. No I/O; the
caller passes the time, in seconds.

A death costs seconds, and answers survive it, so nobody would notice. Three deaths of one kind are
reported to the operator, with the words of the error and what helps.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from protocol.process import LEFT_ALONE

# One request kills two workers at most, so it takes more than one request.
_REPORTED_AT: Final = 3
# Rarer deaths cost a minute a week, which nobody would act on. Long prompts that fail may come only
# a few times a day.
_WINDOW_S: Final = 24 * 3600.0
_KINDS: Final = 8
_LONGEST: Final = 200

# Signals that a process gets for what it does itself. SIGKILL, SIGTERM and others come from people,
# or from a system that is short of memory.
_OWN_SIGNALS: Final = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")

# What MLX and Metal write before the words of an error, whether Python or C++ reports it.
_REPORT: Final = re.compile(r"(?:what\(\): +|\b\w*(?:Error|Exception|_error): )(.+)")
_FATAL: Final = re.compile(r"Fatal Python error: (.+)")
_OF_GPU: Final = re.compile(
    r"\[METAL\]|\[metal::|CommandBufferCallbackError|\bcu(?:da|blas|dnn|fft)\w*\b.* failed"
)
# A call and its arguments, as in "cudaStreamEndCapture(stream, &graph) failed: ...".
_CALL: Final = re.compile(r"^(\w+)\(.*\) failed\b")
_NUMBER: Final = re.compile(r"\b0x[0-9a-f]+|\b(?=\w*\d)[\w-]{16,}|\b\d[\d.,]*\b", re.IGNORECASE)
_CODE_OF_METAL: Final = re.compile(r"\b[0-9a-f]{8}:(?=kIO)")
# CUDA reports a kernel's error from a later call, which may be any.
_LATER_CALL: Final = re.compile(r"^cuda\w+ failed: ")

_REMEDIES: Final = (
    (
        re.compile(r"OutOfMemory|[Oo]ut of memory|\[metal::malloc\]|Unable to allocate"),
        "Lower memory.budget, or give {id} a shorter context_tokens.",
    ),
    (
        re.compile(r"illegal memory access|misaligned address|PageFault|launch failure"),
        "Install a newer MLX. If only long prompts do it, a shorter context_tokens for {id} avoids "
        "it; otherwise `guesses = false` may. `bulkhead logs {id}` is what a report needs.",
    ),
    (
        re.compile(r"SubmissionsIgnored"),
        "`bulkhead logs {id}` has other errors of the GPU before this one: the first is the cause.",
    ),
    (
        re.compile(r"CallbackError(?:Timeout|ImpactingInteractivity|InnocentVictim)"),
        "Have fewer models compute at once, and no other program on the GPU.",
    ),
)
_REPORT_IT: Final = "Report it, with the model's name and the output of `bulkhead logs {id}`."


class LastExit(Struct, frozen=True):
    """How the last worker of a model has ended. `at` is a Unix time in seconds."""

    at: float
    code: int | None
    signal: str | None
    reason: str
    log_tail: list[str]

    @property
    def how(self) -> str:
        if self.signal:
            return f"by {self.signal}"
        return "with an unknown status" if self.code is None else f"with code {self.code}"


class RepeatedDeath(Struct, frozen=True):
    """An error that workers of a model die of. `last_at` is the Unix time of the last death."""

    error: str
    deaths: int
    last_at: float
    remedy: str

    def __str__(self) -> str:
        return f"{self.deaths} of its workers have died of one error: {self.error.rstrip('.')}"


def error_of(code: int | None, signal: str | None, log_tail: Sequence[str]) -> str | None:
    """The words of the error that a worker died of, without addresses and numbers. `log_tail` has
    the worker's last lines. None: the worker was ended by others, or its error isn't known.
    """
    if code in (0, LEFT_ALONE) or (signal is not None and signal not in _OWN_SIGNALS):
        return None
    reports = [match[1] for line in log_tail if (match := _REPORT.search(line))]
    of_gpu = next((line for line in (*reports, *log_tail) if _OF_GPU.search(line)), None)
    if of_gpu is not None:
        # Later errors follow from the first one.
        return _plain(of_gpu)
    if signal is not None:
        fatal = [match[1] for line in log_tail if (match := _FATAL.search(line))]
        # A program that aborts has said why before.
        why = (signal == "SIGABRT" and reports) or fatal
        return _plain(": ".join((signal, *why[-1:])))
    lines = reports or [line for line in log_tail if line.strip()]
    return _plain(lines[-1]) if code is not None and lines else None


def remedy(error: str, model_id: str) -> str:
    """What helps against an error, in sentences."""
    texts = (text for pattern, text in _REMEDIES if pattern.search(error))
    return next(texts, _REPORT_IT).format(id=model_id)


def _plain(words: str) -> str:
    words = _CODE_OF_METAL.sub("", _CALL.sub(r"\1 failed", " ".join(words.split())))
    words = _NUMBER.sub("…", words)
    return words if len(words) <= _LONGEST else words[: _LONGEST - 1] + "…"


class _DeathKind:
    """The deaths of one kind."""

    error: str
    last_at: float

    def __init__(self) -> None:
        self.deaths = 0
        self.times: deque[float] = deque(maxlen=_REPORTED_AT)
        self.reported = False


class RepeatedDeaths:
    """The deaths of a model's workers, by kind. A kind is forgotten a day after its last death, by
    an order, and when the model's files change.
    """

    def __init__(self, model_id: str) -> None:
        self._model_id = model_id
        self._kinds: dict[str, _DeathKind] = {}
        self._fingerprint: str | None = None

    def record(self, error: str, now: float, unix_time: float) -> RepeatedDeath | None:
        """Record a death. Returns a report if the operator should get one now."""
        self._forget_old(now)
        name = _LATER_CALL.sub("", error)
        # The latest kind is the last one.
        kind = self._kinds.pop(name) if name in self._kinds else _DeathKind()
        self._kinds[name] = kind
        if len(self._kinds) > _KINDS:
            del self._kinds[next(iter(self._kinds))]
        kind.error, kind.last_at = error, unix_time
        kind.deaths += 1
        kind.times.append(now)
        if kind.reported or len(kind.times) < _REPORTED_AT or now - kind.times[0] >= _WINDOW_S:
            return None
        kind.reported = True
        return self._report(kind)

    def loaded(self, fingerprint: str | None) -> None:
        """Record the fingerprint of the model's files, if the model was loaded."""
        if fingerprint is None:
            return
        if self._fingerprint not in (None, fingerprint):
            self.forget()
        self._fingerprint = fingerprint

    def repeated(self, now: float) -> list[RepeatedDeath]:
        """The errors that were reported, and are not forgotten yet."""
        self._forget_old(now)
        return [self._report(kind) for kind in self._kinds.values() if kind.reported]

    def forget(self) -> None:
        self._kinds.clear()

    def _report(self, kind: _DeathKind) -> RepeatedDeath:
        helps = remedy(kind.error, self._model_id)
        return RepeatedDeath(kind.error, kind.deaths, kind.last_at, helps)

    def _forget_old(self, now: float) -> None:
        for name, kind in list(self._kinds.items()):
            if now - kind.times[-1] >= _WINDOW_S:
                del self._kinds[name]
