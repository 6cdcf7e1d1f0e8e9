"""Are calls read as they are written: by the model's own template, and by models of its family?"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from protocol.answers import AnswerPart, Text, ToolCall, merged
from protocol.check import CheckFinding
from protocol.requests import (
    CalledTool,
    ChatMessage,
    ChatPrompt,
    Generate,
    Sampling,
    TextPrompt,
    Tools,
)
from worker.errands.check.subject import Findings, SectionSkipped, Subject, Teller, shared
from worker.errands.check.tokens import turn_end
from worker.system.errors import PromptError
from worker.text.families import template_text
from worker.text.stream import answer_stream

TELL: Final = Teller("parser")
_RECORDED: Final = Path(__file__).with_name("recorded.json")
_TOOL: Final = "probed_tool"
# For each type a schema, and a value that is hard to read.
_TYPES: Final[dict[str, tuple[dict[str, Any], Any]]] = {
    "string": ({"type": "string"}, "two words"),
    "text of many lines": ({"type": "string"}, 'if a < b:\n    print("x")\n'),
    "string of digits": ({"type": "string"}, "007"),
    "other script": ({"type": "string"}, "Köln 東京"),
    "integer": ({"type": "integer"}, -12),
    "number": ({"type": "number"}, 2.5),
    "boolean": ({"type": "boolean"}, False),
    "null": ({"type": ["string", "null"]}, None),
    "array": ({"type": "array", "items": {"type": "string"}}, ["a", "b, c"]),
    "object": ({"type": "object"}, {"a": {"b": [1, None]}}),
}


class RecordedAnswer(Struct, frozen=True):
    """An answer as a model of `family` wrote it, which has the special `tokens`. The right reading
    are the `calls` and the text, if the text is known.
    """

    case: str
    family: str
    tokens: tuple[str, ...]
    opening: str
    answer: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    text: str | None


class Recorded(Struct, frozen=True):
    tools: list[dict[str, Any]]
    answers: tuple[RecordedAnswer, ...]


@cache
def recorded() -> Recorded:
    return msgspec.json.decode(_RECORDED.read_bytes(), type=Recorded)


def check_the_parser(subject: Subject) -> Findings:
    subject.chat  # noqa: B018  # A model without a template calls nothing.
    written = yield from _written(subject)
    answers = [answer for answer in recorded().answers if _is_of(subject, answer)]
    yield from check_the_answers(subject, answers, recorded().tools)
    family = "harmony" if subject.format.harmony else subject.format.family
    return (
        f"Calls are of the family {family}: {written} types written by the template and "
        f"{len(answers)} recorded answers were read."
    )


def _written(subject: Subject) -> Generator[CheckFinding, None, int]:
    """Read what the template writes of a call, a type at a time. Returns how many were read."""
    wrong, read = {}, 0
    for kind, (schema, value) in _TYPES.items():
        tools = _tools(schema)
        try:
            prompt, answer = _call_in(subject, tools, json.dumps({"key": value}))
        except (PromptError, SectionSkipped):
            return 0
        if _TOOL not in answer:
            return 0  # The template writes no calls.
        read += 1
        calls = _calls(read_answer(subject, prompt, answer, tools))
        if calls != [(_TOOL, {"key": value})]:
            wrong[kind] = (answer, calls)
    if wrong:
        answer, calls = next(iter(wrong.values()))
        yield TELL.fault(
            "Calls that the template writes aren't read back as they were.",
            f"Wrong for {', '.join(wrong)}: {answer!r:.200} is read as {calls!r:.100}.",
            "Report it with the name of the model.",
            "bulkhead",
        )
    return read


def _tools(schema: dict[str, Any]) -> Tools:
    parameters = {"type": "object", "properties": {"key": schema}, "required": ["key"]}
    function = {"name": _TOOL, "description": "A tool.", "parameters": parameters}
    return Tools(definitions=json.dumps([{"type": "function", "function": function}]))


def _call_in(subject: Subject, tools: Tools, arguments: str) -> tuple[str, str]:
    """The prompt before an answer with a call, and the answer as the template writes it."""
    user = ChatMessage("user", "Call the tool.")
    called = CalledTool("probe1234", _TOOL, arguments)
    result = ChatMessage("tool", "probed-result", tool_call_id=called.id)
    calling = ChatMessage("assistant", "", tool_calls=(called,))
    asked, whole = (
        subject.chat.text(ChatPrompt(messages), tools, lambda message: message.content)
        for messages in ((user,), (user, calling, result))
    )
    same = shared(asked, whole)
    answer = whole[len(same) :].partition("probed-result")[0]
    ending = turn_end(subject)
    if ending is not None:
        # Behind the end of the turn the result begins.
        answer = answer.partition(subject.tokenizer.convert_ids_to_tokens(ending))[0]
    return asked if same == asked else same, answer


def read_answer(subject: Subject, prompt: str, answer: str, tools: Tools) -> list[AnswerPart]:
    """The parts of an answer, as requests get them."""
    tokenizer = subject.tokenizer
    generate = Generate(
        request_id="check",
        prompt=TextPrompt(""),
        sampling=Sampling(seed=0),
        parsed=True,
        tools=tools,
    )
    prompt_ids = list(tokenizer.encode(prompt, add_special_tokens=False))
    stream = answer_stream(generate, prompt_ids, tokenizer, subject.format)
    parts: list[AnswerPart] = []
    for token_id in tokenizer.encode(answer, add_special_tokens=False):
        parts += stream.add(token_id)
        if stream.stopped:
            break
    return merged(parts + stream.finish(complete=True))


def _calls(parts: list[AnswerPart]) -> list[tuple[str | None, Any]]:
    calls = []
    for part in parts:
        if isinstance(part, ToolCall):
            try:
                arguments = json.loads(part.arguments)
            except ValueError:
                arguments = part.arguments
            calls.append((part.name, arguments))
    return calls


def _is_of(subject: Subject, answer: RecordedAnswer) -> bool:
    """Whether a recorded answer is of the model's family, and can be written in its tokens."""
    family = "harmony" if subject.format.harmony else subject.format.family
    vocabulary, template = subject.tokenizer.get_vocab(), template_text(subject.tokenizer)
    # A model without calls counts as one of the most common family.
    starts = [block.start for block in subject.format.blocks]
    has_tags = any(start in vocabulary or start in template for start in starts)
    return (
        answer.family == family
        and (has_tags or subject.format.harmony)
        and all(token in vocabulary for token in answer.tokens)
    )


def check_the_answers(
    subject: Subject, answers: list[RecordedAnswer], definitions: list[dict[str, Any]]
) -> Iterator[CheckFinding]:
    tools = Tools(definitions=json.dumps(definitions))
    wrong = {}
    for answer in answers:
        parts = read_answer(subject, answer.opening, answer.answer, tools)
        text = "".join(part.text for part in parts if isinstance(part, Text))
        read = _calls(parts)
        if read != list(answer.calls) or (answer.text is not None and text != answer.text):
            wrong[answer.case] = read
    if wrong:
        case, read = next(iter(wrong.items()))
        yield TELL.fault(
            "Answers that models of this family write aren't read right.",
            f"{len(wrong)} of {len(answers)}: {', '.join(list(wrong)[:3])}; the first is read as "
            f"{read!r:.200}.",
            f"Report it with the name of the model: {case}.",
            "bulkhead",
        )
