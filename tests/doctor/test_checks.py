"""What doctor says of models that were checked."""

from __future__ import annotations

from gateway.doctor.checks import judge_checks
from gateway.doctor.finding import Severity
from gateway.models.check_reports import CheckReport
from protocol.check import CheckFinding

FAULT = CheckFinding(
    "files", "fault", "A shard is missing.", "There is no b.", "Pull it again.", "conversion"
)


def report(faults: int, *, stale: bool = False) -> CheckReport:
    return CheckReport(
        model="m",
        source="org/m",
        state="done",
        verdict="faults" if faults else "ok",
        faults=faults,
        findings=(FAULT,) * faults,
        stale=stale,
        started_at=0.0,
        ended_at=1.0,
    )


def test_model_with_faults_is_named_with_the_first_remedy() -> None:
    (finding,) = judge_checks([report(2), report(0)])
    assert (finding.severity, finding.subject) == (Severity.ERROR, "org/m")
    assert finding.evidence == ("A shard is missing. There is no b. That is one of 2 faults.")
    assert finding.remedy == "Pull it again. `bulkhead check org/m` looks again."


def test_result_of_other_files_says_nothing() -> None:
    (finding,) = judge_checks([report(1, stale=True)])
    assert (finding.severity, "No model was checked" in finding.evidence) == (Severity.OK, True)


def test_good_results_are_counted() -> None:
    (finding,) = judge_checks([report(0), report(0)])
    assert finding.evidence == "2 models were checked, none has faults."
