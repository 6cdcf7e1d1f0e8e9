"""The errand as a process: its sections come in order, and none of them stops the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from gateway.workers.process import WORKER
from protocol.check import CheckAnswers, Checked, CheckFinding, CheckModel, Section, SectionDone
from protocol.errands import Environment
from tests.support.shapes import DEMO
from tests.worker.errands.check import planted

pytestmark = pytest.mark.processes
_WITHIN_S = 300.0


def answers_to(order: CheckModel) -> list[CheckAnswers]:
    command = [sys.executable, "-P", str(WORKER), "check"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # The end of its input would end the process.
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()
        first, *lines = process.stdout.read().splitlines()
        assert process.wait(_WITHIN_S) == 0
    msgspec.json.decode(first, type=Environment)
    return [msgspec.json.decode(line, type=CheckAnswers) for line in lines]


def sections_of(answers: list[CheckAnswers]) -> dict[str, SectionDone]:
    return {item.section: item for item in answers if isinstance(item, SectionDone)}


def test_every_section_answers_in_order() -> None:
    answers = answers_to(CheckModel(str(DEMO), seconds=_WITHIN_S))
    sections = sections_of(answers)
    assert tuple(sections) == get_args(Section)
    assert [name for name, done in sections.items() if not done.ran] == ["vectors"]
    last = answers[-1]
    assert isinstance(last, Checked)
    faults = [item for item in answers if isinstance(item, CheckFinding)]
    assert [item for item in faults if item.severity != "note"] == []
    assert (last.verdict, last.faults) == ("ok", 0)


def test_a_model_that_cannot_be_loaded_gets_its_other_findings(tmp_path: Path) -> None:
    folder = planted.linked(DEMO, tmp_path / "model")
    planted.cut_off(folder)
    planted.clock(folder)
    answers = answers_to(CheckModel(str(folder)))
    sections_of_findings = {item.section for item in answers if isinstance(item, CheckFinding)}
    assert {"files", "template"} <= sections_of_findings
    assert not sections_of(answers)["numbers"].ran
    assert answers[-1] == Checked("faults", 1, 1, answers[-1].seconds)  # type: ignore[union-attr]


def test_without_memory_the_weights_are_not_read() -> None:
    answers = answers_to(CheckModel(str(DEMO), limit_bytes=1000))
    sections = sections_of(answers)
    assert [name for name, done in sections.items() if done.ran] == [
        "files",
        "tokenizer",
        "template",
        "parser",
    ]
    assert "no room for the weights" in sections["numbers"].summary
    unchecked = answers[-2]
    assert isinstance(unchecked, CheckFinding)
    assert "Left out: numbers, stop, ways, context, speed" in unchecked.evidence
    assert sections["vectors"].summary == "It doesn't concern this model."
    assert isinstance(answers[-1], Checked)
    assert answers[-1].verdict == "incomplete"


def test_a_name_without_a_model_is_a_fault() -> None:
    finding, checked = answers_to(CheckModel("/no/such/folder"))
    assert isinstance(finding, CheckFinding)
    assert isinstance(checked, Checked)
    assert checked.verdict == "faults"


def test_a_check_without_time_says_how_to_give_it_more() -> None:
    answers = answers_to(CheckModel(str(DEMO), seconds=0.01))
    note, checked = answers[-2:]
    assert isinstance(note, CheckFinding)
    assert isinstance(checked, Checked)
    assert note.remedy == f"Give it more time: bulkhead check {DEMO} --seconds 600"
    assert checked.verdict == "incomplete"


def test_a_configuration_that_cannot_be_read_is_one_fault(tmp_path: Path) -> None:
    folder = planted.linked(DEMO, tmp_path / "model")
    planted.write(folder / "config.json", "garbage")
    answers = answers_to(CheckModel(str(folder)))
    findings = [item for item in answers if isinstance(item, CheckFinding)]
    assert [(item.section, item.severity, item.owner) for item in findings] == [
        ("files", "fault", "conversion")
    ]
    assert "config.json can't be read" in findings[0].evidence
    skipped = {name: done.summary for name, done in sections_of(answers).items() if not done.ran}
    assert {skipped[name] for name in ("tokenizer", "template", "parser")} == {
        "config.json can't be read."
    }
