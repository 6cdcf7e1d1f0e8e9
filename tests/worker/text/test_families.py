"""Recorded answers of many families, in tokens of every size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.answers import (
    AnswerPart,
    Reasoning,
    Text,
    ToolCall,
    merged,
)
from protocol.requests import Generate, Sampling, TextPrompt, Tools
from tests.worker.text.recorded import RECORDED, Recorded
from worker.text.families import find_format
from worker.text.format import AnswerFormat
from worker.text.stream import AnswerStream, answer_stream


def definition(name: str, **types: str) -> dict[str, Any]:
    properties = {name: {"type": type_} for name, type_ in types.items()}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


DEFINITIONS = json.dumps(
    [definition("weather", city="string", days="integer"), definition("note", text="string")]
)


class Model:
    """Of a family: what its answers are split by."""

    def __init__(self, recorded: Recorded, folder: Path) -> None:
        self.recorded = recorded
        self.tokenizer: Any = recorded.tokenizer(folder)
        self.format: AnswerFormat = find_format(self.tokenizer)

    def stream(self, tools: Tools | None) -> AnswerStream:
        generate = Generate(
            request_id="r",
            prompt=TextPrompt(""),
            sampling=Sampling(seed=0),
            parsed=True,
            tools=tools,
        )
        prompt_ids = self.ids([f"<|im_start|>user\nHi<think><|im_end|>\n{self.recorded.opening}"])
        return answer_stream(generate, prompt_ids, self.tokenizer, self.format)

    def ids(self, pieces: list[str]) -> list[int]:
        encode = self.tokenizer.encode
        return [item for piece in pieces for item in encode(piece, add_special_tokens=False)]

    def byte_ids(self, text: str) -> list[int]:
        """A token a byte."""
        letters = self.tokenizer.backend_tokenizer.pre_tokenizer
        printable = "".join(item for item, _ in letters.pre_tokenize_str(text))
        return [self.tokenizer.convert_tokens_to_ids(text) for text in printable]


def parts_of(
    stream: AnswerStream, token_ids: list[int], *, complete: bool = True
) -> list[AnswerPart]:
    parts = []
    for token_id in token_ids:
        parts += stream.add(token_id)
        if stream.stopped:
            break
    return merged(parts + stream.finish(complete=complete))


TOOLS = Tools(definitions=DEFINITIONS)


@pytest.fixture(scope="module", params=RECORDED, ids=lambda item: item.name)
def model(request: Any, tmp_path_factory: Any) -> Model:
    return Model(request.param, tmp_path_factory.mktemp("family") / "model")


def test_each_family_is_recognised_and_read(model: Model) -> None:
    assert model.format.family == model.recorded.family
    stream = model.stream(TOOLS)
    assert parts_of(stream, model.ids([model.recorded.answer])) == model.recorded.parts
    called = any(isinstance(part, ToolCall) for part in model.recorded.parts)
    assert stream.ended_with_calls == called


def test_a_token_a_byte_gives_the_same(model: Model) -> None:
    stream = model.stream(TOOLS)
    assert parts_of(stream, model.byte_ids(model.recorded.answer)) == model.recorded.parts


@given(st.data())
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_tokens_of_any_size_give_the_same(model: Model, data: st.DataObject) -> None:
    answer = model.recorded.answer
    cuts = sorted(data.draw(st.sets(st.integers(0, len(answer)), max_size=12)))
    pieces = [
        answer[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)
    ]
    token_ids = model.ids(pieces)
    at = data.draw(st.integers(0, len(token_ids)))
    stream = model.stream(TOOLS)
    whole = [part for token_id in token_ids for part in stream.add(token_id)]
    resumed = model.stream(TOOLS)
    delivered = [part for token_id in token_ids[:at] for part in resumed.add(token_id)]
    rest = [part for token_id in token_ids[at:] for part in resumed.add(token_id)]
    assert merged(delivered + rest) == merged(whole)
    assert merged(whole + stream.finish(complete=True)) == model.recorded.parts


def test_a_cut_answer_loses_nothing(model: Model) -> None:
    """Wherever it is cut, by its length: what was sure stays, and what is text has its tags."""
    answer = model.recorded.answer
    texts = [part for part in model.recorded.parts if isinstance(part, Text | Reasoning)]
    answer_text = " ".join(text.text for text in texts)
    names = [word for word in ("Köln", "a <b> c", *answer_text.split()) if word in answer]
    assert names
    for end in (*range(1, len(answer), max(1, len(answer) // 12)), len(answer)):
        stream = model.stream(TOOLS)
        parts = parts_of(stream, model.byte_ids(answer[:end]), complete=False)
        for name in names:
            if name in answer[:end]:
                assert name in "".join(
                    call.text if isinstance(call, Text | Reasoning) else call.arguments
                    for call in parts
                    if isinstance(call, Text | Reasoning | ToolCall)
                )


def test_without_tools_calls_are_text(model: Model) -> None:
    token_ids = model.byte_ids(model.recorded.answer)
    for tools in (None, Tools(definitions=DEFINITIONS, choice="none")):
        parts = parts_of(model.stream(tools), token_ids)
        assert not any(isinstance(part, ToolCall) for part in parts)
        reasoning = [part for part in model.recorded.parts if isinstance(part, Reasoning)]
        assert [part for part in parts if isinstance(part, Reasoning)] == reasoning


def test_a_single_call_ends_the_answer_if_one_is_wanted(model: Model) -> None:
    stream = model.stream(Tools(definitions=DEFINITIONS, parallel=False))
    parts = parts_of(stream, model.byte_ids(model.recorded.answer))
    wanted = []
    for part in model.recorded.parts:
        wanted.append(part)
        if isinstance(part, ToolCall):
            break
    assert parts == wanted
