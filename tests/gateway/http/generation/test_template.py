"""What a chat template is told: the model's own, a body's words for thinking, a body's own."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.http.generation.generation_body import TemplateBody
from gateway.system.refusal import Refusal


def _arguments(defaults: dict[str, Any], **fields: Any) -> Any:
    sent = json.dumps({"model": "m", **fields}).encode()
    text = msgspec.json.decode(sent, type=TemplateBody).template_arguments(defaults)
    return json.loads(text) if text else None


@pytest.mark.parametrize(
    ("defaults", "fields", "expected"),
    [
        ({}, {}, None),
        ({"a": 1}, {}, {"a": 1}),
        ({}, {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        (
            {"enable_thinking": True},
            {"reasoning_effort": "none"},
            {"enable_thinking": False, "reasoning_effort": "none"},
        ),
        ({"enable_thinking": True}, {"enable_thinking": False}, {"enable_thinking": False}),
        (
            {"a": 1, "b": 1},
            {"enable_thinking": False, "chat_template_kwargs": {"b": [2], "enable_thinking": True}},
            {"a": 1, "b": [2], "enable_thinking": True},
        ),
        ({"a": 1}, {"chat_template_kwargs": None}, {"a": 1}),
    ],
)
def test_precedence_of_template_arguments(
    defaults: dict[str, Any], fields: dict[str, Any], expected: Any
) -> None:
    before = dict(defaults)
    assert _arguments(defaults, **fields) == expected
    assert defaults == before


@pytest.mark.parametrize("value", [[], "x", 1, {"x": "y" * 70_000}])
def test_template_arguments_must_be_object(value: Any) -> None:
    with pytest.raises(Refusal) as caught:
        _arguments({}, chat_template_kwargs=value)
    assert caught.value.param == "chat_template_kwargs"
