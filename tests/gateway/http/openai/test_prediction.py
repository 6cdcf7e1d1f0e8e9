"""The client's prediction of an answer, from the body to the messages for workers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.config.model import Model
from gateway.config.model_settings import ModelSettings
from gateway.http.openai.chat import ChatBody, draft
from gateway.requests.choices import answers_to
from gateway.requests.request import Terms
from protocol.requests import Generate


def _message(**fields: Any) -> Generate:
    sent = {"model": "m", "messages": [{"role": "user", "content": "?"}], **fields}
    body = msgspec.json.decode(json.dumps(sent).encode(), type=ChatBody)
    (generate,) = draft(body, Model("m", "/m", ModelSettings(path="/m"))).generates
    return generate


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("x = 1\n", "x = 1\n"),
        ([{"type": "text", "text": "x ="}, {"type": "text", "text": " 1\n"}], "x = 1\n"),
        ([], ""),
        ("", ""),
    ],
)
def test_prediction_is_text_or_parts(content: object, text: str) -> None:
    assert _message(prediction={"type": "content", "content": content}).prediction == text


@pytest.mark.parametrize("fields", [{}, {"prediction": None}])
def test_prediction_may_be_missing(fields: dict[str, Any]) -> None:
    assert _message(**fields).prediction == ""


def test_every_choice_gets_prediction() -> None:
    generate = _message(prediction={"type": "content", "content": "Hello"}, n=3)
    tasks = [answer.task for answer in answers_to(generate, 3, Terms(deadline_s=1.0), 0.0)]
    assert [task.prediction for task in tasks if isinstance(task, Generate)] == ["Hello"] * 3
