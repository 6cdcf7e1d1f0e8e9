"""Conversations in any order of roles, in templates with the rules of published strict ones."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.utils import load_tokenizer

from protocol.requests import CalledTool, ChatMessage
from tests.support.shapes import DEMO
from worker.mlx_lm.text import tokenizer_inside
from worker.template.writer import MessageWriter, as_users

END: Final = "<end>"
_WRITE: Final = """\
{%- for message in turns %}{{- '<' ~ message.role ~ '>' ~ lead ~ message.content }}
{%- set lead = '' %}
{%- for call in message.tool_calls or [] %}{{- '=' ~ call.function.name }}{% endfor %}
{{- '<end>' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
_ALL: Final = "{%- set turns = messages %}{%- set lead = '' %}"
# The system's text becomes a part of the first message behind it, and is lost if there is none.
_LEAD: Final = """\
{%- set leads = messages and messages[0].role == 'system' %}
{%- set turns = messages[1:] if leads else messages %}{% set first = messages[0].content %}"""
_LED: Final = _WRITE.replace(
    "~ lead ~", "~ (first ~ ' ' if leads and loop.first else '') ~"
).replace("{%- set lead = '' %}\n", "")
_ALTERNATE: Final = """\
{%- for message in turns %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Roles must alternate.') }}{% endif %}{% endfor %}"""
_PLAIN: Final = """\
{%- for message in turns %}{% if message.role not in ['user', 'assistant'] %}
{{- raise_exception('Only users and assistants.') }}{% endif %}{% endfor %}"""
_UNCALLED: Final = _WRITE.replace("message.tool_calls or []", "[]")
# Calls and results don't count.
_COUNTED: Final = """\
{%- set seen = namespace(count=0) %}{% for message in turns %}
{%- if message.role == 'tool' and message.tool_call_id|length != 9 %}
{{- raise_exception('Nine, please.') }}{% endif %}
{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
{%- if (message.role == 'user') != (seen.count % 2 == 0) %}
{{- raise_exception('Roles must alternate but for calls.') }}{% endif %}
{%- set seen.count = seen.count + 1 %}
{%- elif message.role not in ['assistant', 'tool'] %}
{{- raise_exception('Only the first may be the system.') }}{% endif %}{% endfor %}"""
_NOT_EMPTY: Final = """\
{%- for message in turns %}
{%- if message.role == 'assistant' and not message.content and not message.tool_calls %}
{{- raise_exception('Say something.') }}{% endif %}{% endfor %}"""
_ASKED: Final = """\
{%- if messages|selectattr('role', 'equalto', 'user')|list|length == 0 %}
{{- raise_exception('No query of a user.') }}{% endif %}
{%- for message in messages %}{% if message.role == 'system' and not loop.first %}
{{- raise_exception('The system comes first.') }}{% endif %}{% endfor %}"""
_CALLED: Final = """\
{%- set last = namespace(calls=false) %}{% for message in messages %}
{%- if message.role == 'assistant' %}{% set last.calls = message.tool_calls is defined %}{% endif %}
{%- if message.role == 'tool' and not last.calls %}
{{- raise_exception('No call before this result.') }}{% endif %}{% endfor %}"""
_DROPS: Final = (
    "{%- set turns = messages|rejectattr('role', 'equalto', 'system')|list %}{%- set lead = '' %}"
)
TAKES_ALL: Final = _ALL + _WRITE
STRICT: Final = {
    "Mistral 7B 0.1": _ALL + _ALTERNATE + _PLAIN + _UNCALLED,
    "Gemma 2": _ALL + _ALTERNATE + _UNCALLED,
    "Gemma 3, Llama 2, Command R": _LEAD
    + _ALTERNATE
    + _LED.replace("message.tool_calls or []", "[]"),
    "Mistral Nemo": _LEAD + _COUNTED + _LED,
    "Devstral": _LEAD + _COUNTED + _NOT_EMPTY + _LED,
    "Qwen 3.5": _ASKED + TAKES_ALL,
    "gpt-oss": _CALLED + TAKES_ALL,
    "Phi 3": _DROPS + _UNCALLED,
}
CALLS = ChatMessage("assistant", "", tool_calls=(CalledTool("call_1", "look", "{}"),))
ROLES = st.lists(
    st.sampled_from(["system", "user", "assistant", "empty", "calls", "tool"]),
    min_size=1,
    max_size=9,
)


@pytest.fixture(scope="module")
def renderer() -> Any:
    return tokenizer_inside(load_tokenizer(DEMO))


class Rendered:
    def __init__(self, renderer: Any, template: str) -> None:
        self._renderer = renderer
        self._template = template
        self.writer = MessageWriter(template, self._write)

    def __call__(self, messages: list[ChatMessage], *, asking: bool = False) -> str:
        repaired = self.writer.order.repaired(messages)
        return self._write(self.writer.messages(repaired), asking=asking)

    def _write(self, written: list[dict[str, Any]], *, asking: bool = False) -> str:
        return str(
            self._renderer.apply_chat_template(
                written,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=asking,
            )
        )


def _contents(*roles: str) -> list[ChatMessage]:
    messages = []
    for number, role in enumerate(roles):
        match role:
            case "calls":
                messages.append(CALLS)
            case "empty":
                messages.append(ChatMessage("assistant", ""))
            case "tool":
                messages.append(ChatMessage("tool", f"said {number}.", tool_call_id="call_1"))
            case _:
                messages.append(ChatMessage(role, f"said {number}."))
    return messages


@pytest.mark.parametrize("template", STRICT.values(), ids=STRICT)
def test_every_order_of_roles_is_rendered_and_stays_the_beginning(
    renderer: Any, template: str
) -> None:
    rendered = Rendered(renderer, template)
    order = rendered.writer.order

    @settings(max_examples=60)
    @given(ROLES)
    def check(roles: list[str]) -> None:
        messages = _contents(*roles)
        rest = rendered(messages, asking=True)
        for message in messages:
            _, found, rest = rest.partition(
                message.content or "look" * len(message.tool_calls) or "<"
            )
            assert found, message
        before, after = order.repaired(messages[:-1]), order.repaired(messages)
        if all(chat_message.role == "system" for chat_message in messages[:-1]):
            return  # Templates don't render these alone.
        text, longer = rendered(messages[:-1]), rendered(messages)
        if list(after[: len(before)]) == list(before):
            assert longer.startswith(text)
        else:
            # The last message has joined the one before it, with a mark between them.
            assert after[-1].role == "system" or "</" in after[-1].content
            assert longer.startswith(text.removesuffix(END))

    check()


@given(ROLES)
def test_a_template_that_takes_them_gets_them_as_they_are(renderer: Any, roles: list[str]) -> None:
    messages = _contents(*roles)
    assert Rendered(renderer, TAKES_ALL).writer.order.repaired(messages) is messages


@pytest.mark.parametrize("name", ["Mistral Nemo", "Devstral"])
def test_a_missing_turn_gets_a_filler(renderer: Any, name: str) -> None:
    rendered = Rendered(renderer, STRICT[name])
    assert rendered(_contents("user", "user")) == (
        "<user>said 0.<end><assistant>(no answer)<end><user>said 1.<end>"
    )
    assert rendered(_contents("user", "calls", "tool", "user")) == (
        "<user>said 0.<end><assistant>=look<end><tool>said 2.<end>"
        "<assistant>(no answer)<end><user>said 3.<end>"
    )
    assert rendered(_contents("user", "calls", "user")) == (
        "<user>said 0.<end><assistant>=look<end><assistant>(no answer)<end><user>said 2.<end>"
    )
    assert rendered(_contents("system", "assistant", "assistant")) == (
        "<user>said 0. (no message)<end><assistant>said 1.<end>"
        "<user>(no message)<end><assistant>said 2.<end>"
    )
    assert rendered(_contents("user", "calls", "tool", "assistant", "user")) == (
        "<user>said 0.<end><assistant>=look<end><tool>said 2.<end>"
        "<assistant>said 3.<end><user>said 4.<end>"
    )


def test_an_empty_answer_is_filled_where_it_is_refused(renderer: Any) -> None:
    asked = _contents("user", "empty", "user")
    assert "<assistant><end>" in Rendered(renderer, STRICT["Mistral Nemo"])(asked)
    assert "<assistant>(no answer)<end>" in Rendered(renderer, STRICT["Devstral"])(asked)


def test_a_conversation_without_a_user_begins_with_a_filler(renderer: Any) -> None:
    rendered = Rendered(renderer, STRICT["Qwen 3.5"])
    assert rendered(_contents("system", "calls", "tool")) == (
        "<system>said 0.<end><user>(no message)<end><assistant>=look<end><tool>said 2.<end>"
    )
    assert rendered(_contents("system")) == "<system>said 0.<end><user>(no message)<end>"
    # It takes several in a row.
    assert rendered(_contents("user", "user")) == "<user>said 0.<end><user>said 1.<end>"


@pytest.mark.parametrize("name", ["Mistral 7B 0.1", "Gemma 2"])
def test_calls_and_results_are_text_where_no_tool_has_a_role(renderer: Any, name: str) -> None:
    answer = ChatMessage(
        "assistant",
        "Wait.",
        tool_calls=(CalledTool("a", "look", '{"at": "Köln"}'), CalledTool("b", "now", "{}")),
    )
    messages = [*_contents("system", "user"), answer, *_contents("tool", "tool", "user")]
    assert Rendered(renderer, STRICT[name])(messages) == (
        "<user><system_message>\nsaid 0.\n</system_message>\n\nsaid 1.<end><assistant>Wait.\n"
        '<tool_call>\n{"name": "look", "arguments": {"at": "Köln"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call><end>'
        "<user><tool_response>\nsaid 0.\n</tool_response>\n\n"
        "<tool_response>\nsaid 1.\n</tool_response>\n\nsaid 2.<end>"
    )


def test_a_result_without_its_call_is_a_part_of_a_users_message(renderer: Any) -> None:
    rendered = Rendered(renderer, STRICT["gpt-oss"])
    assert rendered(_contents("user", "tool", "calls", "tool")) == (
        "<user>said 0.\n\n<tool_response>\nsaid 1.\n</tool_response><end>"
        "<assistant>=look<end><tool>said 3.<end>"
    )


def test_a_result_without_an_id_gets_one_where_ids_are_wanted(renderer: Any) -> None:
    result = ChatMessage("tool", "Wet")
    asked = [*_contents("user", "calls"), result]
    assert "<tool>Wet" in Rendered(renderer, STRICT["Mistral Nemo"])(asked)
    (written,) = MessageWriter(TAKES_ALL, lambda _: "").messages([result])
    assert "tool_call_id" not in written


def test_results_among_users_keep_the_systems_place() -> None:
    (joined,) = as_users(_contents("tool", "system", "tool"), tools=True)
    assert joined.content == (
        "<tool_response>\nsaid 0.\n</tool_response>\n\n"
        "<system_message>\nsaid 1.\n</system_message>\n\n"
        "<tool_response>\nsaid 2.\n</tool_response>"
    )
