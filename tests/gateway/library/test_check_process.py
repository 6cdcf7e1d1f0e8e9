"""The process of a check may answer anything, or die at any time."""

from __future__ import annotations

import queue
from pathlib import Path

import msgspec
import pytest

from gateway.library.check_process import CheckMessage, CheckProcess
from protocol.check import Checked, CheckFinding, CheckModel, SectionDone
from protocol.errands import Environment
from tests.support.gateway import START_S

FIRST = Environment("3.11", "0.32", "0.32")
NOTE = CheckFinding("files", "note", "What.", "Evidence.", "", "model")


def run(tmp_path: Path, script: str) -> tuple[list[CheckMessage], str | None]:
    """The answers of a program in place of the interpreter, and how it has failed."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    answers: list[CheckMessage] = []
    ends: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    CheckProcess(CheckModel("m"), str(python), answers.append, ends.put)
    return answers, ends.get(timeout=START_S)


def printed(*answers: CheckMessage) -> str:
    return "\n".join(f"echo '{msgspec.json.encode(answer).decode()}'" for answer in answers)


def test_answers_come_in_order(tmp_path: Path) -> None:
    answers: list[CheckMessage] = [
        FIRST,
        NOTE,
        SectionDone("files", 1.0, True, "Seen."),
        Checked("ok", 0, 0, 1.0),
    ]
    assert run(tmp_path, printed(*answers)) == (answers, None)


@pytest.mark.parametrize("nonsense", ["hello", '{"answer": "other"}', '{"answer": "finding"}'])
def test_nonsense_ends_the_process(tmp_path: Path, nonsense: str) -> None:
    answers, failure = run(tmp_path, f"{printed(FIRST)}\necho '{nonsense}'\nexec sleep 1000")
    assert answers == [FIRST]
    assert (failure or "").startswith("an answer that isn't one: ")


def test_an_endless_line_ends_the_process(tmp_path: Path) -> None:
    answers, failure = run(tmp_path, f"{printed(FIRST)}\nexec yes '' | tr '\\n' a")
    assert answers == [FIRST]
    assert (failure or "").startswith("an answer that isn't one: ")


def test_answers_beyond_a_bound_are_dropped_but_not_the_last(tmp_path: Path) -> None:
    many = f"for i in $(seq 2000); do {printed(NOTE)}; done"
    last = Checked("ok", 0, 0, 1.0)
    answers, failure = run(tmp_path, f"{printed(FIRST)}\n{many}\n{printed(last)}")
    assert failure is None
    assert len(answers) <= 501
    assert answers[-1] == last


def test_a_death_is_told_with_the_last_error(tmp_path: Path) -> None:
    assert run(tmp_path, "echo 'no module mlx' >&2; exit 3") == ([], "exit code 3: no module mlx")
    answers, failure = run(tmp_path, f"{printed(FIRST)}\nkill -9 $$")
    assert (answers, failure) == ([FIRST], "signal SIGKILL")


def test_a_missing_interpreter_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        CheckProcess(CheckModel("m"), str(tmp_path / "none"), print, print)
