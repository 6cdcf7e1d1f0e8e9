"""Why an answer began late, as its operator and its client read it: causes that were planted, and
nothing of another key.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import openai
import pytest

from bench.hybrid import HYBRID
from bench.models import build_model
from tests.cli.terminal import bulkhead
from tests.support.gateway import Gateway, eventually

_COUNT = itertools.count()
LONG = "You help with questions on ships, and you answer in short words. " * 3
SETTINGS = """
[models.demo]
path = "demo"
[models.other]
path = "demo"
"""

Messages = list[dict[str, Any]]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    running = Gateway(models=(), config=SETTINGS)
    yield running
    running.stop()


def _ask(gateway: Gateway, headers: dict[str, str] | None = None, **body: Any) -> dict[str, Any]:
    """Ask, and then ask why."""
    name = f"asked-{next(_COUNT)}"
    body = {"model": "demo", "max_tokens": 2, "temperature": 0, **body}
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    answer = gateway.client.post(path, json=body, headers={"x-request-id": name, **(headers or {})})
    assert answer.status_code == 200, answer.text
    return _why(gateway, name)


def _why(gateway: Gateway, name: str) -> dict[str, Any]:
    answer = gateway.client.get(f"/admin/v1/requests/{name}/why")
    why: dict[str, Any] = answer.raise_for_status().json()
    return why


def _system(text: str) -> Messages:
    return [{"role": "system", "content": text}, *_conversation("Hello, who are you?")]


def _conversation(*texts: str) -> Messages:
    """A conversation in which user and assistant take turns."""
    roles = itertools.cycle(("user", "assistant"))
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


def _tool(name: str, about: str = "Looks it up.") -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}}
    function = {"name": name, "description": about, "parameters": parameters}
    return {"type": "function", "function": function}


class Plant(NamedTuple):
    """Two bodies, and the cause that the second one's late begin has."""

    cause: str
    section: str | None
    before: dict[str, Any]
    now: dict[str, Any]


def _systems(cause: str, before: str, now: str) -> Plant:
    texts = [f"{cause} {LONG}{text} {LONG}" for text in (before, now)]
    bodies = [{"messages": _system(text)} for text in texts]
    return Plant(cause, "system", *bodies)


def _tools(cause: str, section: str, before: list[Any], now: list[Any]) -> Plant:
    messages = _system(f"{cause} {LONG}")
    return Plant(
        cause,
        section,
        {"messages": messages, "tools": before},
        {"messages": messages, "tools": now},
    )


def _talks(cause: str, section: str | None, before: Messages, now: Messages) -> Plant:
    system = [{"role": "system", "content": f"{cause} {section} {LONG}"}]
    return Plant(cause, section, {"messages": system + before}, {"messages": system + now})


ONE, TWO, THREE = (f"{word} {LONG}" for word in ("First", "Second", "Third"))
REPLY = "A bulkhead is a wall that keeps the water out of the rest of a ship."
TALK = _conversation(ONE, REPLY, TWO, REPLY, THREE)
A, B, C = _tool("alpha"), _tool("beta"), _tool("gamma")
THINKING = [TALK[0], {**TALK[1], "reasoning_content": "What may be meant by that? " * 5}, *TALK[2:]]

PLANTS = [
    _systems("system_changed:clock", "It is 12:01:33 now.", "It is 12:01:59 now."),
    _systems("system_changed:clock", "Now: 2026-11-27T09:59:01Z.", "Now: 2026-11-27T10:02:44Z."),
    _systems("system_changed:clock", "Unix time 1795807759.", "Unix time 1795807802."),
    _systems(
        "system_changed:date", "Today is Friday, November 27.", "Today is Saturday, November 28."
    ),
    _systems("system_changed:date", "Date: 2026-11-27.", "Date: 2026-12-01."),
    _systems("system_changed:path", "Folder: /home/ann/boat", "Folder: /home/ann/anchor"),
    _systems("system_changed:path", "Folder: C:\\work\\boat", "Folder: C:\\work\\mast"),
    _systems(
        "system_changed:id",
        "Session 3f2504e0-4f89-11d3-9a0c-0305e82c3301.",
        "Session 7c9e6679-7425-40de-944b-e07fc1f90ae7.",
    ),
    _systems("system_changed:id", "Nonce: a8f5f167f44f4964.", "Nonce: 0cc175b9c0f1b6a8."),
    _systems(
        "system_changed:counter", "You have used 1,204 tokens.", "You have used 13,409 tokens."
    ),
    _systems("system_changed", "Be kind.", "Be terse."),
    Plant(
        "system_added",
        "system",
        {"messages": _conversation(f"added {ONE}")},
        {"messages": [{"role": "system", "content": "added"}, *_conversation(f"added {ONE}")]},
    ),
    Plant(
        "system_removed",
        "system",
        {"messages": [{"role": "system", "content": "removed"}, *_conversation(f"removed {ONE}")]},
        {"messages": _conversation(f"removed {ONE}")},
    ),
    _tools("tools_reordered", "tools", [A, B, C], [A, C, B]),
    _tools("tools_added", "tools", [A, B], [A, B, C]),
    _tools("tools_removed", "tools", [A, B, C], [A, C]),
    _tools("tools_replaced", "tools", [A, B], [A, C]),
    _tools("tool_changed", "tool beta", [A, B], [A, _tool("beta", "Looks something up.")]),
    _tools(
        "tool_changed:clock",
        "tool beta",
        [A, _tool("beta", "It is 12:01 now.")],
        [A, _tool("beta", "It is 12:07 now.")],
    ),
    _talks(
        "message_changed:clock",
        "message 1 (user)",
        _conversation(f"Today at 12:01 I ask. {ONE}", REPLY, TWO),
        _conversation(f"Today at 12:09 I ask. {ONE}", REPLY, TWO),
    ),
    _talks(
        "message_changed:path",
        "message 1 (user)",
        _conversation(f"{LONG} I am in /home/ann/boat. {ONE}", REPLY, TWO),
        _conversation(f"{LONG} I am in /home/ann/mast. {ONE}", REPLY, TWO),
    ),
    _talks(
        "message_changed",
        "message 3 (user)",
        TALK,
        [*TALK[:2], *_conversation(f"{TWO} No.", REPLY, ONE)],
    ),
    _talks("messages_removed", "message 1 (user)", TALK, TALK[2:]),
    _talks("messages_removed", "message 3 (user)", TALK, [*TALK[:2], *TALK[4:]]),
    _talks(
        "messages_inserted",
        "message 3 (user)",
        TALK,
        [*TALK[:2], *_conversation(ONE * 2, REPLY), *TALK[2:]],
    ),
    _talks(
        "messages_summarized",
        "message 1 (user)",
        TALK,
        [*_conversation(f"In short: ships have walls. {LONG}"), *TALK[3:]],
    ),
    _talks("reasoning_dropped", "message 2 (assistant)", THINKING, TALK),
    _talks(
        "other_conversation",
        "message 1 (user)",
        TALK,
        _conversation("What about masts?", REPLY, "And sails?"),
    ),
    _talks("appended", None, TALK[:3], TALK),
    Plant(
        "arguments",
        "template arguments",
        {"messages": _conversation(f"arguments {ONE}"), "reasoning_effort": "low"},
        {"messages": _conversation(f"arguments {ONE}"), "reasoning_effort": "high"},
    ),
    Plant(
        "other_salt",
        None,
        {"messages": _conversation(f"other salt {ONE}"), "cache_salt": "one"},
        {"messages": _conversation(f"other salt {ONE}"), "cache_salt": "two"},
    ),
    Plant(
        "scored",
        None,
        {"prompt": f"scored {ONE}"},
        {"prompt": f"scored {ONE}", "echo": True, "logprobs": 1},
    ),
    Plant("found", None, {"prompt": f"found {ONE}"}, {"prompt": f"found {ONE}"}),
    Plant("short", None, {"prompt": "short"}, {"prompt": "short"}),
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.cause)
def test_planted_cause_is_named(gateway: Gateway, plant: Plant) -> None:
    _ask(gateway, **plant.before)
    why = _ask(gateway, **plant.now)
    assert why["cause"] == plant.cause, why
    if plant.section is not None:
        assert why["changes"][0]["section"] == plant.section
    assert why["wait"]["parts_s"]


def test_first_prompt_is_the_first(gateway: Gateway) -> None:
    why = _ask(gateway, prompt=f"Nobody has asked this before. {LONG}")
    assert (why["cause"], why["earlier"]) == ("first", None)


def test_prompt_of_another_model_is_named(gateway: Gateway) -> None:
    prompt = f"Asked of two models. {LONG}"
    _ask(gateway, prompt=prompt)
    why = _ask(gateway, prompt=prompt, model="other")
    assert why["cause"] == "other_model"
    assert why["wait"]["parts_s"]["load"] > 0, "the other model was loaded for it"


def test_clear_is_named(gateway: Gateway) -> None:
    prompt = f"Cleared in between. {LONG}"
    _ask(gateway, prompt=prompt)
    gateway.client.post("/admin/v1/models/demo/prompt-cache/clear").raise_for_status()
    why = _ask(gateway, prompt=prompt)
    assert (why["cause"], why["cached_tokens"]) == ("cleared", 0)


def test_texts_around_the_place_are_shown(gateway: Gateway) -> None:
    before, now = (f"texts {LONG}It is {clock} now. {LONG}" for clock in ("12:01", "12:02"))
    _ask(gateway, messages=_system(before))
    (change,) = _ask(gateway, messages=_system(now))["changes"]
    assert change["at"] == before.index("12:01") + 4
    assert change["old"]["before"].endswith("It is 12:0")
    assert change["old"]["behind"].startswith("1 now.")
    assert change["new"]["behind"].startswith("2 now.")
    assert (
        change["sentence"]
        == "The time of day in the system prompt changed: '12:01' became '12:02'."
    )


def test_unknown_request_is_refused_with_advice(gateway: Gateway) -> None:
    answer = gateway.client.get("/admin/v1/requests/nobody/why")
    assert answer.status_code == 404
    assert "without an id lists them" in answer.json()["error"]["message"]


def test_command_tells_and_lists(gateway: Gateway) -> None:
    _ask(gateway, messages=_system(f"command {LONG} Now: 12:01. {LONG}"))
    name = _ask(gateway, messages=_system(f"command {LONG} Now: 12:02. {LONG}"))["id"]
    answer = bulkhead("why", name, "--url", gateway.url)
    assert "cause    The time of day in the system prompt changed" in answer.stdout, answer.stderr
    assert "computing the prompt" in answer.stdout
    whole = json.loads(bulkhead("why", f"chatcmpl-{name}", "--json", "--url", gateway.url).stdout)
    assert whole["id"] == name
    eventually(lambda: name in bulkhead("why", "--url", gateway.url).stdout)
    unknown = bulkhead("why", "nobody", "--url", gateway.url)
    assert (unknown.returncode, "is remembered" in unknown.stderr) == (4, True)


def test_openai_client_gets_diagnostics(gateway: Gateway) -> None:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none")

    def respond(text: str, compared: str | None, *, stream: bool = False) -> Any:
        options = None if compared is None else {"comparison_response_id": compared}
        fields: dict[str, Any] = {} if options is None else {"prompt_cache_options": options}
        answer = client.responses.create(
            model="demo", input=text, max_output_tokens=2, stream=stream, **fields
        )
        return list(answer)[-1].response if stream else answer

    text = f"An openai client asks. {LONG}It is 12:01. {LONG}"
    first = respond(text, None)
    assert first.prompt_cache_diagnostics is None
    assert respond(text, first.id).prompt_cache_diagnostics.type == "cache_hit"
    missed = respond(text.replace("12:01", "12:05"), first.id, stream=True)
    diagnostics = missed.prompt_cache_diagnostics
    assert (diagnostics.type, diagnostics.reason) == ("cache_miss", "input_changed")
    assert (
        diagnostics.cache_missed_tokens + diagnostics.comparison_reusable_tokens
        == first.usage.input_tokens
    )
    unknown = respond(text, "resp_nobody").prompt_cache_diagnostics
    assert unknown.type == "comparison_response_not_found"


def test_anthropic_client_gets_diagnostics(gateway: Gateway) -> None:
    client = anthropic.Anthropic(base_url=gateway.url, api_key="none")

    def create(system: str, previous: str | None, *, stream: bool = False) -> Any:
        fields: dict[str, Any] = {
            "model": "demo",
            "max_tokens": 2,
            "system": system,
            "messages": [{"role": "user", "content": "Hello"}],
            "diagnostics": {"previous_message_id": previous},
        }
        if not stream:
            return client.messages.create(**fields)
        with client.messages.stream(**fields) as events:
            return events.get_final_message()

    system = f"An anthropic client asks. {LONG}It is 12:01. {LONG}"
    first = create(system, None)
    assert first.diagnostics is None
    assert create(system, first.id).diagnostics is None
    for stream in (False, True):
        changed = create(system.replace("12:01", "12:05"), first.id, stream=stream)
        reason = changed.diagnostics.cache_miss_reason
        assert reason.type == "system_changed"
        whole = first.usage.input_tokens + first.usage.cache_read_input_tokens
        assert 0 < reason.cache_missed_input_tokens < whole
    unknown = create(system, "msg_nobody").diagnostics.cache_miss_reason
    assert unknown.type == "previous_message_not_found"


def test_nothing_of_another_key_is_shown(start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway()
    keys = {name: _new_key(gateway, name) for name in ("ann", "bob")}
    secret = (gateway.state_dir / "admin.key").read_text().strip()
    gateway.client.headers["x-api-key"] = secret
    texts = [f"Between keys. {LONG}It is {clock} now. {LONG}" for clock in ("12:01", "12:02")]
    anns = _ask(gateway, keys["ann"], messages=_system(texts[0]))
    for text in texts:
        why = _ask(gateway, keys["bob"], messages=_system(text))
        assert why["earlier"] is None or why["earlier"]["id"] != anns["id"]
    assert why["cause"] == "system_changed:clock", "of bob's own request before"
    assert (
        gateway.client.get(f"/admin/v1/requests/{anns['id']}/why", headers=keys["bob"]).status_code
        == 403
    )
    client = anthropic.Anthropic(base_url=gateway.url, auth_token=keys["bob"]["authorization"][7:])
    diagnostics = client.messages.create(
        model="demo",
        max_tokens=2,
        system=texts[1],
        messages=[{"role": "user", "content": "Hello, who are you?"}],
        diagnostics={"previous_message_id": f"msg_{anns['id']}"},
    ).diagnostics
    assert diagnostics is not None
    assert diagnostics.cache_miss_reason is not None
    assert diagnostics.cache_miss_reason.type == "previous_message_not_found"

    gateway.client.delete("/admin/v1/keys/ann").raise_for_status()
    assert gateway.client.get(f"/admin/v1/requests/{anns['id']}/why").status_code == 404
    assert _why(gateway, why["id"])["cause"] == "system_changed:clock"
    assert "12:01" not in gateway.log


def _new_key(gateway: Gateway, name: str) -> dict[str, str]:
    path = gateway.state_dir / "admin.key"
    admin = {"x-api-key": path.read_text().strip()}
    answer = gateway.client.post("/admin/v1/keys", json={"name": name}, headers=admin)
    return {"authorization": f"Bearer {answer.raise_for_status().json()['key']}"}


def test_nothing_is_remembered_with_the_switch_off(start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway(config="")
    prompt = f"The switch goes off. {LONG}"
    name = _ask(gateway, prompt=prompt)["id"]
    gateway.config_path.write_text("[prompt_cache]\nexplain = false\n")
    gateway.client.post("/admin/v1/reload").raise_for_status()
    answer = gateway.client.get(f"/admin/v1/requests/{name}/why")
    assert (answer.status_code, "set prompt_cache.explain" in answer.text) == (404, True)
    gateway.say("Go on.", max_tokens=1)
    gateway.config_path.write_text("")
    gateway.client.post("/admin/v1/reload").raise_for_status()
    assert gateway.client.get(f"/admin/v1/requests/{name}/why").status_code == 404
    assert _ask(gateway, prompt=prompt)["cause"] == "first"


def test_end_of_the_worker_is_named(start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway(config="[prompt_cache]\ndisk = 0\n")
    prompt = f"Its worker ends. {LONG}"
    _ask(gateway, prompt=prompt)
    gateway.order("unload").raise_for_status()
    why = _ask(gateway, prompt=prompt)
    assert (why["cause"], why["cached_tokens"]) == ("ended", 0)
    assert set(why["wait"]["parts_s"]) >= {"start", "load", "prefill"}


def test_answer_of_recurrent_layers_is_computed_again(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    build_model(tmp_path / "hybrid", HYBRID)
    gateway = start_gateway(models=(f"{tmp_path / 'hybrid'}=hybrid",))
    body = {"model": "hybrid", "messages": _conversation(LONG), "ignore_eos": True}
    answer = gateway.client.post("/v1/chat/completions", json={**body, "max_tokens": 200}).json()
    talk = _conversation(LONG, answer["choices"][0]["message"]["content"], "And then?")
    why = _ask(gateway, model="hybrid", messages=talk)
    assert why["cause"] == "at_places", why
    assert why["cached_tokens"] < answer["usage"]["total_tokens"] - 128
