"""What agents asked in a turn, asked again. Each request goes on where the answer to the one before
left off, so all of them together go through two tools to the end of the turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.support.agents.recorded import HOLD, recorded
from tests.support.agents.running import configuration
from tests.support.agents.script import DONE, UNTOOLED, script
from tests.support.gateway import Gateway
from tests.support.scripted.model import TEMPLATES, scripted_model

TOOLS = {
    "claude": ["Bash", "Read"],
    "claude-older": ["Bash", "Read"],
    "codex": ["exec_command", "view_image"],
    "codex-patching": ["exec_command", "apply_patch"],
    "codex-coding": ["exec", "list_agents"],
    "opencode": ["bash", "read"],
}


class Answer(NamedTuple):
    """It has one call at most; `arguments` are JSON, or the text that a custom tool gets."""

    text: str
    tool: str
    arguments: str
    prompt_tokens: int
    cached_tokens: int


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    models = tmp_path_factory.mktemp("models")
    made = {
        template: scripted_model(models / template, template, script(HOLD))
        for template in TEMPLATES
    }
    running = Gateway(models=(), config=configuration(made))
    yield running
    assert running.stop() == 0, running.log


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("agent", TOOLS)
def test_recorded(gateway: Gateway, agent: str, template: str) -> None:
    tools, prompt_tokens, text = [], 0, ""
    # A member of a namespace is told to the model by both names.
    told = [(step.tool.rpartition("__")[2], step.arguments) for step in script(HOLD)]
    for request in recorded(agent):
        body = request["body"] and {**request["body"], "model": template}
        sent = gateway.client.request(
            request["method"], request["path"], headers=request["headers"], json=body
        )
        assert sent.status_code == 200, sent.text
        if body is None:
            continue
        answer = _answer(sent.text)
        if TOOLS[agent][0] not in json.dumps(body):
            # It asks for a title.
            assert (answer.text, answer.tool) == (UNTOOLED, "")
            continue
        if answer.tool:
            tools.append(answer.tool)
            custom = not answer.arguments.startswith("{")
            arguments = {"input": answer.arguments} if custom else json.loads(answer.arguments)
            assert (answer.tool, arguments) in told
        # What was computed for the request before is the beginning of this one, but for thoughts:
        # templates leave them out after the next question.
        assert answer.cached_tokens >= 0.8 * prompt_tokens
        prompt_tokens, text = answer.prompt_tokens, answer.text
    assert (tools, text) == (TOOLS[agent], DONE)


def _answer(text: str) -> Answer:
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    events = [json.loads(line) for line in lines if line.startswith("{")]
    if "choices" in events[0]:
        return _of_chat(events)
    return _of_messages(events) if events[0]["type"] == "message_start" else _of_response(events)


def _of_chat(chunks: list[dict[str, Any]]) -> Answer:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    called = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    usage = chunks[-1]["usage"]
    return Answer(
        "".join(delta.get("content") or "" for delta in deltas),
        "".join(item.get("name", "") for item in called),
        "".join(item["arguments"] for item in called),
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
    )


def _of_messages(events: list[dict[str, Any]]) -> Answer:
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    deltas = [entry["delta"] for entry in events if entry["type"] == "content_block_delta"]
    (usage,) = (event["usage"] for event in events if event["type"] == "message_delta")
    cached = usage["cache_read_input_tokens"]
    return Answer(
        "".join(delta.get("text", "") for delta in deltas),
        "".join(block.get("name", "") for block in blocks),
        "".join(delta.get("partial_json", "") for delta in deltas),
        usage["input_tokens"] + cached,
        cached,
    )


def _of_response(events: list[dict[str, Any]]) -> Answer:
    (response,) = (event["response"] for event in events if event["type"] == "response.completed")
    items, usage = response["output"], response["usage"]
    messages = [item for item in items if item["type"] == "message"]
    return Answer(
        "".join(part["text"] for message in messages for part in message["content"]),
        "".join(item.get("name", "") for item in items),
        "".join(item.get("arguments", item.get("input", "")) for item in items),
        usage["input_tokens"],
        usage["input_tokens_details"]["cached_tokens"],
    )
