"""System messages in mid-conversation, in templates of several minds about them."""

from __future__ import annotations

from typing import Final

import pytest

from protocol.requests import CalledTool, ChatMessage, Picture
from tests.support.templates import Templates
from worker.template.writer import as_users

# Each message where it stands.
TAKES: Final = """\
{%- for message in messages %}{{- '<' ~ message.role ~ '>' ~ message.content }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
# As Qwen3.5's: it refuses, and drops what was thought before the last question.
STRICT: Final = """\
{%- set question = namespace(at=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set question.at = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}{% endif %}
{{- '<' ~ message.role ~ '>' }}
{%- if message.reasoning_content and loop.index0 > question.at %}
{{- '(' ~ message.reasoning_content ~ ')' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}{{ '=' ~ call.function.name }}{% endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
# As DeepSeek R1's: all that the system says goes to the front.
HOISTS: Final = """\
{%- for message in messages if message.role == 'system' %}{{ message.content }}{% endfor %}
{%- for message in messages if message.role != 'system' %}
{{- '<' ~ message.role ~ '>' ~ message.content }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
# As gpt-oss's: what the system says later is lost.
LOSES: Final = """\
{%- for message in messages %}{% if loop.first or message.role != 'system' %}
{{- '<' ~ message.role ~ '>' ~ message.content }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
# As Gemma's and Mistral's.
ALTERNATES: Final = """\
{%- set turns = messages[1:] if messages[0].role == 'system' else messages %}
{%- for message in turns %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate.') }}{% endif %}{% endfor %}
{%- for message in messages %}{{- '<' ~ message.role ~ '>' ~ message.content }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
REFUSING: Final = {
    "refused": STRICT,
    "moved to the front": HOISTS,
    "lost": LOSES,
    "alternation": ALTERNATES,
}

SYSTEM = ChatMessage("system", "Be brief.")
LATE = ChatMessage("system", "It rains.")
HELLO = ChatMessage("user", "Hello")
CALLS = ChatMessage("assistant", "", reasoning="Hm", tool_calls=(CalledTool("c", "look", "{}"),))
RESULT = ChatMessage("tool", "Wet", tool_call_id="c")
MARKED = "<system_message>\nIt rains.\n</system_message>"


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    return Templates(tmp_path_factory.mktemp("late") / "made")


def test_a_template_that_takes_them_gets_them_as_they_are(templates: Templates) -> None:
    asked = (SYSTEM, LATE, HELLO, LATE)
    expected = "<system>Be brief.<system>It rains.<user>Hello<system>It rains.<assistant>"
    assert templates.render(TAKES, asked) == expected


@pytest.mark.parametrize("template", REFUSING.values(), ids=REFUSING)
def test_elsewhere_they_stand_in_place_and_marked(templates: Templates, template: str) -> None:
    system = "Be brief." if template == HOISTS else "<system>Be brief."
    asked = (SYSTEM, HELLO, LATE)
    assert templates.render(template, asked) == f"{system}<user>Hello\n\n{MARKED}<assistant>"
    answered = (ChatMessage("assistant", "Hi."), LATE, ChatMessage("user", "And now?"))
    assert templates.render(template, asked[:2] + answered) == (
        f"{system}<user>Hello<assistant>Hi.<user>{MARKED}\n\nAnd now?<assistant>"
    )


@pytest.mark.parametrize("template", REFUSING.values(), ids=REFUSING)
def test_the_beginning_stays_what_it_was(templates: Templates, template: str) -> None:
    """Turn by turn, as agents go on: what was rendered once is rendered again."""
    turns = (SYSTEM, HELLO, LATE, ChatMessage("assistant", "Hi."), LATE, ChatMessage("user", "So"))
    before = ""
    for number in range(2, len(turns) + 1):
        if turns[number - 1].role == "assistant":
            continue
        rendered = templates.render(template, turns[:number]).removesuffix("<assistant>")
        assert rendered.startswith(before)
        before = rendered


def test_reasoning_of_this_turn_stays(templates: Templates) -> None:
    before = templates.render(STRICT, (SYSTEM, HELLO, CALLS, RESULT))
    assert "(Hm)=look<tool>Wet" in before
    after = templates.render(STRICT, (SYSTEM, HELLO, CALLS, RESULT, LATE))
    assert after == before.removesuffix("<assistant>") + f"\n\n{MARKED}<assistant>"


def test_several_at_the_beginning_are_one(templates: Templates) -> None:
    asked = (SYSTEM, ChatMessage("system", "Be kind."), HELLO)
    rendered = templates.render(STRICT, asked)
    assert rendered == "<system>Be brief.\n\nBe kind.<user>Hello<assistant>"


def test_pictures_keep_their_places() -> None:
    picture = Picture(b"p", 4, "messages[2]")
    shown = ChatMessage("user", "Look at", pictures=(picture,))
    hi = ChatMessage("assistant", "Hi")
    (_, _, joined) = as_users((HELLO, hi, LATE, LATE, shown))
    (moved,) = joined.pictures
    assert joined.content[moved.at :] == " at"
    assert joined.content == f"{MARKED}\n\n{MARKED}\n\nLook at"
    (first, _) = as_users((shown, LATE, hi))
    assert first.pictures == (picture,)


def test_a_conversation_may_begin_without_one() -> None:
    assert as_users((HELLO, LATE)) == [ChatMessage("user", f"Hello\n\n{MARKED}")]
    assert as_users(()) == []


def test_tens_of_thousands_are_joined_once() -> None:
    many = 100_000
    (joined,) = as_users((HELLO, *[LATE] * many))
    assert joined.content == "\n\n".join(["Hello", *[MARKED] * many])
    (front,) = as_users([SYSTEM] * many)
    assert front == ChatMessage("system", "\n\n".join(["Be brief."] * many))
