"""What agents have the system say in mid-conversation, with a template that refuses it there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import shapes
from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow

REFUSES = """\
{%- for message in messages %}
{%- if message.role not in ['user', 'assistant', 'tool'] and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor -%}
"""
BLOCK = 64
SYSTEM = "Be brief. " * 60
LATE = "The sandbox is read-only now. " * 20


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("strict") / "demo"
    shutil.copytree(shapes.DEMO, folder)
    template = folder / "chat_template.jinja"
    template.write_text(REFUSES + template.read_text())
    running = Gateway(models=(str(folder),))
    yield running
    assert running.stop() == 0, running.log


def _turn(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


BEGUN = [_turn("user", "Hello"), _turn("system", LATE)]
GONE_ON = [
    *BEGUN,
    _turn("assistant", "Hi."),
    _turn("system", LATE),
    _turn("user", "And now?"),
]


def _developers(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    late = [{**turn, "role": turn["role"].replace("system", "developer")} for turn in turns]
    return [_turn("developer", SYSTEM), *late]


@pytest.mark.parametrize("turns", [BEGUN, GONE_ON], ids=["at the end", "in the middle"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", lambda turns: {"system": SYSTEM, "messages": turns}),
        ("/v1/chat/completions", lambda turns: {"messages": _developers(turns)}),
        ("/v1/responses", lambda turns: {"instructions": SYSTEM, "input": _developers(turns)}),
        ("/api/chat", lambda turns: {"messages": [_turn("system", SYSTEM), *turns]}),
    ],
)
def test_every_api_takes_it(
    strict: Gateway,
    path: str,
    body: Callable[[list[dict[str, Any]]], dict[str, Any]],
    turns: list[dict[str, Any]],
) -> None:
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    asked = {"model": "demo", limit: 2, "stream": False, **body(turns)}
    answer = strict.client.post(path, json=asked)
    assert answer.status_code == 200, answer.text


def test_the_next_turn_finds_the_one_before(strict: Gateway) -> None:
    def ask(turns: list[dict[str, Any]]) -> dict[str, int]:
        body = {"model": "demo", "max_tokens": 2, "system": "Be kind. " + SYSTEM, "messages": turns}
        answer = strict.client.post("/v1/messages", json=body).raise_for_status()
        return dict(answer.json()["usage"])

    first, second = ask(BEGUN), ask(GONE_ON)
    assert first["cache_read_input_tokens"] == 0
    # But for what asks for the answer, all of it.
    assert second["cache_read_input_tokens"] > first["input_tokens"] - 2 * BLOCK
