"""The model that is checked, as the sections share it, and the findings that they make."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import mlx.core as mx

from protocol.check import CheckFinding, CheckModel, Owner, Section, Severity
from protocol.model_files import read_config, text_table
from worker.load.loading import LoadedModel, load, read_tokenizer
from worker.template.chat_template import ChatTemplate
from worker.text.families import find_format
from worker.text.format import AnswerFormat

# Of these MLX keeps so many for its next arrays.
_BUFFER_BYTES: Final = 256 << 20
# A section gives its findings as it makes them, and returns its summary.
Findings: TypeAlias = Generator[CheckFinding, None, str]


def shared(one: str, two: str) -> str:
    """The text with which both texts begin."""
    pairs = zip(one, two, strict=False)
    length = next(
        (place for place, (a, b) in enumerate(pairs) if a != b), min(map(len, (one, two)))
    )
    return one[:length]


class SectionSkipped(Exception):
    """A section has nothing to look at. The text says why, as a sentence."""


class UncheckedError(SectionSkipped):
    """Time or memory were too short for a section, which had something to look at."""


class InvalidNumbersError(Exception):
    """The model's numbers aren't finite, or are all the same. Nothing more can be asked of it."""


@dataclass(frozen=True)
class Teller:
    """Makes the findings of one section."""

    section: Section

    def fault(
        self, what: str, evidence: str, remedy: str, owner: Owner = "conversion"
    ) -> CheckFinding:
        return self._finding("fault", what, evidence, remedy, owner)

    def warning(
        self, what: str, evidence: str, remedy: str, owner: Owner = "conversion"
    ) -> CheckFinding:
        return self._finding("warning", what, evidence, remedy, owner)

    def remark(
        self, what: str, evidence: str, remedy: str = "", owner: Owner = "model"
    ) -> CheckFinding:
        return self._finding("note", what, evidence, remedy, owner)

    def _finding(
        self, severity: Severity, what: str, evidence: str, remedy: str, owner: Owner
    ) -> CheckFinding:
        return CheckFinding(self.section, severity, what, evidence, remedy, owner)


@dataclass
class Subject:
    """Each part is read when a section first asks for it, and fails there if it can't be read."""

    order: CheckModel
    folder: Path
    began_at: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return self.order.seconds - (time.monotonic() - self.began_at)

    @cached_property
    def config(self) -> dict[str, Any]:
        """Raises: SectionSkipped: the section "files" has said why it can't be read."""
        try:
            return read_config(self.folder)
        except (OSError, ValueError):
            raise SectionSkipped("config.json can't be read.") from None

    @cached_property
    def text_config(self) -> dict[str, Any]:
        """The configuration of the language model, which may stand in a table of its own."""
        return {**self.config, **text_table(self.config)}

    @cached_property
    def tokenizer(self) -> Any:
        """mlx-lm's wrapper."""
        self.config  # noqa: B018  # The wrapper needs it.
        return read_tokenizer(self.folder)

    @cached_property
    def chat(self) -> ChatTemplate:
        if not self.tokenizer.has_chat_template:
            raise SectionSkipped("The model has no chat template, so it takes plain prompts alone.")
        return ChatTemplate(self.tokenizer)

    @cached_property
    def format(self) -> AnswerFormat:
        return find_format(self.tokenizer)

    @cached_property
    def loaded(self) -> LoadedModel:
        order = self.order
        mx.set_cache_limit(_BUFFER_BYTES)
        return load(
            order.source, lambda _done, _total: None, lambda: False, order.adapter, order.draft
        )

    @cached_property
    def writer(self) -> LoadedModel:
        """The loaded model, if it writes text."""
        if self.loaded.is_encoder or self.loaded.is_headless:
            raise SectionSkipped("The model makes vectors, and writes no text.")
        return self.loaded
