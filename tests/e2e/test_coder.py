"""Qwen2.5-Coder over HTTP: what a trained model makes of tools, schemas and code.

Each test takes minutes on a CPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import sitecustomize
from tests.support.gateway import Gateway
from tests.support.mlx_lms_own import CHEAP_GUESSES, MlxLm
from tests.support.real_models import real_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

MODEL = "coder"


def _tool(name: str, description: str, argument: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    _tool("get_weather", "Tells the weather in a city.", "city"),
    _tool("translate", "Translates an English word into French.", "word"),
]
CALLS = {
    "What is the weather like in Paris?": ("get_weather", {"city": "Paris"}),
    "Is it raining in Tokyo?": ("get_weather", {"city": "Tokyo"}),
    "How warm is it in Cairo now?": ("get_weather", {"city": "Cairo"}),
    "What is the French word for house?": ("translate", {"word": "house"}),
    "Translate the word water.": ("translate", {"word": "water"}),
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "city": {"type": "string"},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
FILE = '''
class Shelf:
    """Books by their titles."""

    def __init__(self):
        self.books = {}

    def add(self, title, author):
        self.books[title] = author

    def find(self, title):
        return self.books.get(title)
'''
REPEAT = f"Repeat this file:\n```python{FILE}```"
REPEAT_TOKENS = 96


@pytest.fixture(scope="module")
def folder() -> Path:
    return real_model(MODEL)


@pytest.fixture(scope="module")
def gateway(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    site = sitecustomize(tmp_path_factory.mktemp("site"), CHEAP_GUESSES)
    running = Gateway(models=(str(folder),), environment=site)
    running.client.timeout = 900
    yield running
    assert running.stop() == 0, running.log


def _choice(gateway: Gateway, text: str, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The choice, and the usage."""
    headers = {"X-Deadline-S": "900"}
    answer = gateway.chat(text, MODEL, headers, temperature=0, **fields).raise_for_status().json()
    return answer["choices"][0], answer["usage"]


@pytest.mark.parametrize("question", CALLS)
def test_tool_is_the_right_one_with_the_right_argument(gateway: Gateway, question: str) -> None:
    choice, _ = _choice(
        gateway,
        question,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=64,
    )
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    function = call["function"]
    assert (function["name"], json.loads(function["arguments"])) == CALLS[question]


def test_schema_gets_what_a_text_says(gateway: Gateway) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    text = "As JSON: Anna lives in Oslo. She is 34 years old."
    choice, _ = _choice(gateway, text, response_format=schema, max_tokens=48)
    assert choice["finish_reason"] == "stop"
    assert json.loads(choice["message"]["content"]) == {"name": "Anna", "age": 34, "city": "Oslo"}


def test_guesses_are_right_in_an_answer_that_repeats_a_file(gateway: Gateway, folder: Path) -> None:
    choice, usage = _choice(gateway, REPEAT, max_tokens=REPEAT_TOKENS)
    details = usage["completion_tokens_details"]
    right, wrong = (details[f"{kind}_prediction_tokens"] for kind in ("accepted", "rejected"))
    print(f"{right} of {right + wrong} guesses were right, of {usage['completion_tokens']} tokens")
    text = choice["message"]["content"]
    assert FILE.strip() in text
    assert right > usage["completion_tokens"] / 3
    assert text == MlxLm(folder).chat(REPEAT, REPEAT_TOKENS).text
