"""The client's prediction of an answer, from the body to the messages for workers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.config.model import Model
from gateway.config.model_settings import ModelSettings
from gateway.http.openai.chat import ChatBody, _generate
from gateway.requests.choices import answers_to
from gateway.requests.request import Terms
from protocol.requests import Generate


def _message(**fields: Any) -> Generate:
    sent = {"model": "m", "messages": [{"role": "user", "content": "?"}], **fields}
    body = msgspec.json.decode(json.dumps(sent).encode(), type=ChatBody)
    return _generate(body, Model("m", "/m", ModelSettings(path="/m")), ())


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("x = 1\n", "x = 1\n"),
        ([{"type": "text", "text": "x ="}, {"type": "text", "text": " 1\n"}], "x = 1\n"),
        ([], ""),
        ("", ""),
    ],
)
def test_a_text_or_its_parts(content: object, text: str) -> None:
    assert _message(prediction={"type": "content", "content": content}).prediction == text


@pytest.mark.parametrize("fields", [{}, {"prediction": None}])
def test_there_may_be_none(fields: dict[str, Any]) -> None:
    assert _message(**fields).prediction == ""


def test_every_choice_gets_it() -> None:
    generate = _message(prediction={"type": "content", "content": "Hello"}, n=3)
    tasks = [each.task for each in answers_to(generate, 3, Terms(deadline_s=1.0), 0.0)]
    assert [each.prediction for each in tasks if isinstance(each, Generate)] == ["Hello"] * 3
