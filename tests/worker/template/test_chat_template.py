"""Conversations with tools, reasoning and arguments, in templates in the style of some families."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol.requests import (
    CalledTool,
    ChatMessage,
    ChatPrompt,
    Tools,
)
from tests.support.templates import HISTORY, Templates, templated
from worker.system.errors import PromptError
from worker.template.chat_template import ChatTemplate

# Arguments as JSON, which the template writes.
CHATML = """\
{%- for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}
{%- for message in messages %}
{{- '<' ~ message.role ~ '>' }}
{%- if message.reasoning_content %}{{ '(' ~ message.reasoning_content ~ ')' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}{{ call.id ~ '=' ~ call.function.name }}
{{- call.function.arguments | tojson }}{% endfor %}
{%- if message.tool_call_id %}{{ message.name ~ '#' ~ message.tool_call_id }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{% endif %}
{%- endif %}"""
# Arguments as text.
DEEPSEEKS = CHATML.replace("call.function.arguments | tojson", "'' + call.function.arguments")
PRINTED = CHATML.replace("call.function.arguments | tojson", "call.function.arguments")
EITHER = CHATML.replace(
    "call.function.arguments | tojson",
    "call.function.arguments if call.function.arguments is string "
    "else call.function.arguments | tojson",
)
MISTRALS = CHATML.replace(
    "{{ call.id ~",
    "{% if call.id|length != 9 %}{{ raise_exception('Nine, please.') }}{% endif %}{{ call.id ~",
)
KIMIS = CHATML + "{# <|tool_call_argument_begin|> #}"
OSS = (
    CHATML.replace("reasoning_content", "thinking").replace(
        "{{- message.content }}",
        "{%- if message.thinking and message.content and message.tool_calls %}"
        "{{ raise_exception('One of them.') }}{% endif %}{{- message.content }}",
    )
    + "{# <|channel|>analysis #}"
)
DATED = (
    "{%- if not date_string is defined %}{% set date_string = 'today' %}{% endif %}"
    "{%- if thinking is not defined %}{% set thinking = true %}{% endif %}"
    "{{ date_string ~ thinking }}{{ (reasoning_effort | default('medium')).upper() }}"
    "{% generation %}{% endgeneration %}{{ messages[0].content ~ bos_token }}"
    "{%- for a in [1] %}{% break %}{% endfor %}"
)

TOOLS = Tools(definitions=json.dumps([{"type": "function", "function": {"name": "weather"}}]))


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    return Templates(tmp_path_factory.mktemp("templates") / "made")


@pytest.mark.parametrize("template", [CHATML, EITHER])
def test_arguments_as_objects(templates: Templates, template: str) -> None:
    assert templates.render(template, tools=TOOLS) == (
        '[weather]<user>Hi<assistant>(Hm)call_one=weather{"city": "Köln", "n": [1]}'
        "call_two=now{}<tool>warmweather#call_one<assistant>"
    )


@pytest.mark.parametrize("template", [DEEPSEEKS, PRINTED])
def test_arguments_as_text(templates: Templates, template: str) -> None:
    assert templates.render(template) == (
        '<user>Hi<assistant>(Hm)call_one=weather{"city":"Köln", "n": [1]}'
        "call_two=now{}<tool>warmweather#call_one<assistant>"
    )


@pytest.mark.parametrize("broken", ["{", "[1]", '"a"', "[" * 100_000])
def test_arguments_that_are_no_object(templates: Templates, broken: str) -> None:
    called = ChatMessage("assistant", "", tool_calls=(CalledTool("c", "f", broken),))
    assert json.dumps(broken) in templates.render(CHATML, (called,))
    assert broken in templates.render(PRINTED, (called,))


def test_ids_of_mistral(templates: Templates) -> None:
    text = templates.render(MISTRALS)
    written = text.split("(Hm)")[1].split("=")[0]
    assert len(written) == 9
    assert written.isalnum()
    assert f"weather#{written}" in text
    assert templates.render(MISTRALS) == text
    own = ChatMessage("assistant", "", tool_calls=(CalledTool("aB3456789", "f", "{}"),))
    assert "aB3456789=f" in templates.render(MISTRALS, (own,))


def test_ids_of_kimi(templates: Templates) -> None:
    text = templates.render(KIMIS)
    assert "functions.weather:0=weather" in text
    assert "functions.now:1=now" in text
    assert "warmweather#functions.weather:0" in text


def test_reasoning_under_the_templates_own_name(templates: Templates) -> None:
    assert "<assistant>(Hm)call_one" in templates.render(OSS)
    answer = ChatMessage(
        "assistant", "Wait.", reasoning="Hm", tool_calls=(CalledTool("c", "f", "{}"),)
    )
    assert templates.render(OSS, (answer,)) == "<assistant>Wait.c=f{}<assistant>"


def test_tools_are_shown_whatever_the_choice(templates: Templates) -> None:
    none = Tools(definitions=TOOLS.definitions, choice="none")
    assert templates.render(CHATML, tools=none) == templates.render(CHATML, tools=TOOLS)


def test_template_arguments(templates: Templates) -> None:
    user = (ChatMessage("user", "Hi"),)
    assert templates.render(CHATML, user) == "<user>Hi<assistant>"
    closed = templates.render(CHATML, user, arguments={"enable_thinking": False})
    assert closed == "<user>Hi<assistant><think></think>"
    assert templates.render(DATED, user) == "todayTrueMEDIUMHi"
    given = {"date_string": "then", "enable_thinking": False, "reasoning_effort": "low"}
    assert templates.render(DATED, user, arguments=given) == "thenFalseLOWHi"
    assert templates.render(DATED, user, arguments={"thinking": 0}) == "today0MEDIUMHi"
    # Meant for whatever model.
    assert (
        templates.render(CHATML, user, arguments={"reasoning_effort": "low"})
        == "<user>Hi<assistant>"
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("messages", "can't be given"),
        ("tools", "can't be given"),
        ("tokenize", "can't be given"),
        ("chat_template", "can't be given"),
        ("bos_token", "can't be given"),
        ("raise_exception", "can't be given"),
        ("colour", "doesn't know 'colour'. It knows enable_thinking."),
        ("namespace", "doesn't know"),
    ],
)
def test_arguments_that_are_refused_by_name(templates: Templates, name: str, why: str) -> None:
    with pytest.raises(PromptError, match=f"'{name}'") as caught:
        templates.render(CHATML, arguments={name: "x"})
    assert why in caught.value.message
    assert caught.value.code == "invalid_request_error"


def test_messages_that_a_template_refuses(templates: Templates) -> None:
    refusing = "{{ raise_exception('Say please.') }}"
    with pytest.raises(PromptError, match=r"refuses these messages: Say please\.") as caught:
        templates.render(refusing)
    assert caught.value.field == "prompt"
    with pytest.raises(PromptError, match="refuses these messages"):
        templates.render(DATED, arguments={"reasoning_effort": [1]})


def test_a_refusal_names_the_message_that_causes_it(templates: Templates) -> None:
    refusing = CHATML.replace(
        "{{- message.content }}",
        "{% if 'bad' in message.content %}{{ raise_exception('No.') }}{% endif %}"
        "{{- message.content }}",
    )
    asked = [ChatMessage(role, "Good") for role in ("user", "assistant") * 3]
    for place in range(len(asked)):
        begun = (*asked[:place], ChatMessage("user", "Too bad"), *asked[place + 1 :])
        with pytest.raises(PromptError) as caught:
            templates.render(refusing, begun)
        assert caught.value.message == (
            "The model's chat template refuses these messages: No. "
            f"Change or leave out message {place + 1} of 6 (user) that begins 'Too bad'."
        )
    with pytest.raises(PromptError, match="whatever they say: check their roles"):
        templates.render(DATED, tuple(asked), arguments={"reasoning_effort": [1]})


@pytest.mark.parametrize("definitions", ["{", "{}", "[1]", "[" * 100_000])
def test_definitions_that_are_no_list_of_objects(templates: Templates, definitions: str) -> None:
    with pytest.raises(PromptError, match="Definitions of tools") as caught:
        templates.render(CHATML, tools=Tools(definitions=definitions))
    assert caught.value.field == "tools"


def test_a_template_that_is_a_program(tmp_path: Path) -> None:
    """mlx-lm's own of DeepSeek 3.2 reads arguments as text, and can think or not."""
    tokenizer = templated(
        tmp_path / "m", "", ("<think>", "</think>"), chat_template_type="deepseek_v32"
    )
    chat = ChatTemplate(tokenizer)
    answered = (*HISTORY, ChatMessage("tool", "noon", tool_call_id="call_two"))
    given = ChatPrompt(answered, json.dumps({"enable_thinking": False}))
    text = tokenizer.decode(chat.tokens(given, TOOLS))
    assert '<｜DSML｜parameter name="city" string="true">Köln' in text
    assert text.endswith("</think>")
    with pytest.raises(PromptError, match="'drop_thinking'"):
        chat.tokens(ChatPrompt(HISTORY, '{"drop_thinking": true}'))
    with pytest.raises(PromptError, match="refuses these messages"):
        chat.tokens(ChatPrompt((ChatMessage("bishop", "Hi"),)))
