"""A wrong reading of calls is a fault of ours."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from protocol.check import CheckModel
from tests.support.templates import templated
from worker.errands.check.parser import RecordedAnswer, check_the_answers, recorded
from worker.errands.check.subject import Subject

# What a model's template has of its family; the vocabulary shows the other families.
_MARKS = {
    "qwen3_coder": "<tool_call>\n<function=",
    "glm47": "<arg_key>",
    "minimax_m2": "<minimax:tool_call>",
    "hermes": '<tool_call>\n{"name": tool_call.name}\n</tool_call>',
    "kimi_k2": "<|tool_calls_section_begin|>",
    "gemma4": "<|tool_call> <tool_call|>",
    "mistral": "[TOOL_CALLS]",
    "minicpm5": '<function name=" <param name="',
    "longcat": "<longcat_tool_call>",
}


def subject_for(answer: RecordedAnswer, folder: Path) -> Subject:
    subject = Subject(CheckModel(str(folder)), folder)
    subject.tokenizer = templated(folder, _MARKS.get(answer.family, ""), answer.tokens)
    return subject


@pytest.mark.parametrize("answer", recorded().answers, ids=lambda answer: str(answer.case))
def test_a_wrong_reading_of_each_family_is_ours(answer: RecordedAnswer, tmp_path: Path) -> None:
    subject = subject_for(answer, tmp_path / "model")
    assert list(check_the_answers(subject, [answer], recorded().tools)) == []
    other = msgspec.structs.replace(answer, calls=(*answer.calls, ("now", {})))
    (finding,) = check_the_answers(subject, [other], recorded().tools)
    assert (finding.severity, finding.owner) == ("fault", "bulkhead")
    assert json.dumps(answer.case)[1:-1] in json.dumps(finding.remedy)
