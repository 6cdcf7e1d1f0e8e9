"""Runs the sections of a check in order, and answers as each ends. A section that fails ends alone:
the others still run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from protocol.check import (
    BESIDE_BYTES,
    LONGEST_CHECK_S,
    Checked,
    CheckFinding,
    CheckModel,
    Section,
    SectionDone,
    Verdict,
)
from protocol.encoders import encoder_of
from protocol.model_folder import weight_files
from worker.errands import Errand
from worker.errands.check.chat import check_the_template
from worker.errands.check.context import check_the_context
from worker.errands.check.files import check_the_files
from worker.errands.check.numbers import check_the_numbers
from worker.errands.check.parser import check_the_parser
from worker.errands.check.speed import check_the_speed
from worker.errands.check.stop import check_the_stop
from worker.errands.check.subject import (
    Findings,
    InvalidNumbersError,
    SectionSkipped,
    Subject,
    Teller,
    UncheckedError,
)
from worker.errands.check.tokens import check_the_tokenizer
from worker.errands.check.vectors import check_the_vectors
from worker.errands.check.ways import check_the_ways
from worker.load.files import find_folder
from worker.load.loading import is_headless
from worker.system.errors import ModelError, one_sentence

# Enough for most models.
_MORE_S: Final = 600


class _Part(NamedTuple):
    section: Section
    run: Callable[[Subject], Findings]
    loads: bool = True
    concerns: Callable[[Subject], bool] = lambda _: True


def _writes(subject: Subject) -> bool:
    return encoder_of(subject.config) is None and not is_headless(subject.folder)


def _chats(subject: Subject) -> bool:
    return _writes(subject) and bool(subject.tokenizer.has_chat_template)


def _makes_vectors(subject: Subject) -> bool:
    return not _writes(subject) or (subject.folder / "modules.json").is_file()


_PARTS: Final = (
    _Part("files", check_the_files, loads=False),
    _Part("tokenizer", check_the_tokenizer, loads=False),
    _Part("template", check_the_template, loads=False),
    _Part("parser", check_the_parser, loads=False),
    _Part("numbers", check_the_numbers),
    _Part("stop", check_the_stop, concerns=_chats),
    _Part("ways", check_the_ways, concerns=_writes),
    _Part("context", check_the_context, concerns=_chats),
    _Part("vectors", check_the_vectors, concerns=_makes_vectors),
    _Part("speed", check_the_speed, concerns=_writes),
)


def check(errand: Errand) -> None:
    errand.answer_versions()
    _Conductor(errand, errand.read_line(CheckModel)).run()


class _Conductor:
    def __init__(self, errand: Errand, order: CheckModel) -> None:
        self._errand = errand
        self._order = order
        self._began_at = time.monotonic()
        self._faults = 0
        self._warnings = 0
        # Why the sections that need the loaded model don't run; empty: they do.
        self._unloadable = ""
        self._unchecked: list[Section] = []

    def run(self) -> None:
        try:
            subject = Subject(self._order, find_folder(self._order.source))
        except ModelError as error:
            fault = Teller("files").fault("There is no model.", error.reason, "Pull the model.")
            self._answer(fault)
        else:
            for part in _PARTS:
                self._run(part, subject)
            self._tell_unchecked()
        seconds = time.monotonic() - self._began_at
        self._errand.answer(Checked(self._verdict(), self._faults, self._warnings, seconds))

    def _verdict(self) -> Verdict:
        if self._faults:
            return "faults"
        if self._warnings:
            return "warnings"
        return "incomplete" if self._unchecked else "ok"

    def _run(self, part: _Part, subject: Subject) -> None:
        began_at = time.monotonic()
        try:
            if part.loads:
                self._be_loadable(subject)
            summary, ran = self._findings_of(part, subject), True
        except SectionSkipped as skipped:
            summary, ran = str(skipped), False
            if isinstance(skipped, UncheckedError):
                # With a fault, the files that tell whether it is of this model may be unreadable.
                if self._faults or part.concerns(subject):
                    self._unchecked.append(part.section)
                else:
                    summary = "It doesn't concern this model."
        except InvalidNumbersError:
            if not self._faults:
                self._answer(
                    Teller(part.section).fault(
                        "The model computes invalid numbers.",
                        "The logits of a token weren't finite, or were all the same, twice.",
                        "Take another conversion; a model in float16 may need bfloat16.",
                    )
                )
            self._unloadable = "The model computes invalid numbers."
            summary, ran = self._unloadable, True
        except Exception as error:
            # A model's own code and template fail in any way, and after a fault by that fault.
            if not self._faults:
                self._answer(self._failure(part.section, error))
            summary, ran = "The section failed.", False
        seconds = time.monotonic() - began_at
        self._errand.answer(SectionDone(part.section, seconds, ran, summary))

    def _tell_unchecked(self) -> None:
        if self._unchecked:
            finding = Teller(self._unchecked[0]).remark(
                "Not everything was checked: time or memory were too short.",
                f"The check has {self._order.seconds:g} s. Left out: {', '.join(self._unchecked)}.",
                self._remedy(),
                "bulkhead",
            )
            self._answer(finding)

    def _remedy(self) -> str:
        """How the sections that were left out can be checked."""
        seconds = min(max(_MORE_S, 2 * self._order.seconds), LONGEST_CHECK_S)
        if self._unloadable or seconds <= self._order.seconds:
            return "Check again while the machine is idle."
        return f"Give it more time: bulkhead check {self._order.source} --seconds {seconds:g}"

    def _findings_of(self, part: _Part, subject: Subject) -> str:
        findings = part.run(subject)
        while True:
            try:
                self._answer(next(findings))
            except StopIteration as ended:
                return str(ended.value)

    def _answer(self, finding: CheckFinding) -> None:
        self._faults += finding.severity == "fault"
        self._warnings += finding.severity == "warning"
        self._errand.answer(finding)

    def _be_loadable(self, subject: Subject) -> None:
        """Load the model unless it is loaded. Raises: SectionSkipped."""
        if self._unloadable:
            raise self._skipped()
        if subject.left_s <= 0:
            raise UncheckedError(f"No time was left of {self._order.seconds:g} s.")
        limit = self._order.limit_bytes
        try:
            weight_bytes = sum(path.stat().st_size for path in weight_files(subject.folder))
            if limit is not None and weight_bytes + BESIDE_BYTES > limit:
                self._unloadable = (
                    f"There is no room for the weights: they have {weight_bytes:,} bytes, and "
                    f"{limit:,} bytes are free."
                )
            else:
                subject.loaded  # noqa: B018  # Reads the weights.
        except (ModelError, OSError, ValueError) as error:
            if not self._faults:
                reason = error.reason if isinstance(error, ModelError) else one_sentence(error)
                self._answer(
                    Teller("numbers").fault(
                        "The model can't be loaded.", reason, "Pull the model again."
                    )
                )
            self._unloadable = "The model can't be loaded."
        if self._unloadable:
            raise self._skipped()

    def _skipped(self) -> SectionSkipped:
        """What a section ends with that needs the model. Without a fault it was memory."""
        kind = SectionSkipped if self._faults else UncheckedError
        return kind(self._unloadable)

    def _failure(self, section: Section, error: Exception) -> CheckFinding:
        return Teller(section).warning(
            "This section of the check failed.",
            f"{type(error).__name__}: {one_sentence(error)}",
            "Run bulkhead doctor, and report the line above together with its output.",
            "bulkhead",
        )
