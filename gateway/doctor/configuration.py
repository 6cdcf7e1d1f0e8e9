"""The configuration file and what goes before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.config.mistakes import Mistake
from gateway.doctor.finding import Finding, error, ok
from gateway.doctor.installation import Installation

_CHECK = "configuration"


def look_at_configuration(installation: Installation) -> Iterator[Finding]:
    yield from judge_configuration(
        installation.config_file, installation.mistakes, len(installation.settings.models)
    )


def judge_configuration(
    file: Path | None, mistakes: Sequence[Mistake], models: int
) -> Iterator[Finding]:
    """A finding for each mistake."""
    for mistake in mistakes:
        yield error(
            _CHECK,
            str(mistake),
            "Correct it: docs/configuration.md and `bulkhead config example` have every key. "
            "Until then the other checks take its default.",
        )
    if mistakes:
        return
    what = "There is no file, and none is needed" if file is None else f"{file} is good"
    count = f"{models} model{'' if models == 1 else 's'}"
    yield ok(_CHECK, f"{what}: {count if models else 'no models of its own'}.")
