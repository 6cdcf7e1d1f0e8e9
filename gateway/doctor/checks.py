"""The results of earlier checks of models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gateway.doctor.finding import Finding, error, ok
from gateway.doctor.installation import Installation
from gateway.models.check_reports import CheckReport, read_reports

_CHECK: Final = "checks"


def look_at_checks(installation: Installation) -> Iterator[Finding]:
    yield from judge_checks(read_reports(installation.state_dir.checks_path))


def judge_checks(reports: Sequence[CheckReport]) -> Iterator[Finding]:
    """A finding for each model whose last check has faults, if its files are still the same."""
    present = [report for report in reports if not report.stale]
    faulty = [report for report in present if report.faults]
    for report in faulty:
        first = next(finding for finding in report.findings if finding.severity == "fault")
        others = f" That is one of {report.faults} faults." if report.faults > 1 else ""
        yield error(
            _CHECK,
            f"{first.what} {first.evidence}{others}",
            f"{first.remedy} `bulkhead check {report.source}` looks again.".strip(),
            subject=report.source,
        )
    if not faulty:
        count = len(present)
        checked = f"{count} model{'s were' if count != 1 else ' was'} checked, none has faults."
        yield ok(_CHECK, checked if count else "No model was checked: `bulkhead check` does it.")
