"""Answers that go on in the assistant's last message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.requests import ChatMessage, ChatPrompt
from tests.support.templates import templated
from worker.system.errors import PromptError
from worker.template.chat_template import ChatTemplate
from worker.text.families import find_format
from worker.text.format import opening_header, opening_state

# As Qwen 3.5's: it opens reasoning itself, and closes it in a message that has none.
THINKS = """\
{%- for message in messages %}{{- '<|im_start|>' ~ message.role ~ '\n' }}
{%- if message.role == 'assistant' %}
{{- '<think>\n' ~ (message.reasoning_content or '') ~ '\n</think>\n\n' }}{% endif %}
{{- message.content|trim ~ '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"""
TAGS = ("<think>", "</think>")
USER = ChatMessage("user", "Hi <think>")
BEGUN = "<|im_start|>user\nHi <think><|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return templated(tmp_path_factory.mktemp("open") / "made", THINKS, TAGS)


@pytest.mark.parametrize(
    ("content", "reasoning", "end", "state"),
    [
        ("Paris is ", None, "<think>\n\n</think>\n\nParis is ", "normal"),
        ("Paris is", "Hm", "<think>\nHm\n</think>\n\nParis is", "normal"),
        ("<think>\nHm, ", None, "<think>\nHm, ", "reasoning"),
        ("<think>\nHm\n</think>\n\nParis", None, "<think>\nHm\n</think>\n\nParis", "normal"),
        ("<think>\n" + "Hm, " * 400, None, "<think>\n" + "Hm, " * 400, "reasoning"),
        ("", "Hm, so", "<think>\nHm, so", "reasoning"),
        ("", None, "<think>\n", "reasoning"),
    ],
)
def test_a_prompt_ends_with_the_text_of_its_last_message(
    tokenizer: Any, content: str, reasoning: str | None, end: str, state: str
) -> None:
    last = ChatMessage("assistant", content, reasoning=reasoning)
    prompt_ids = ChatTemplate(tokenizer).tokens(ChatPrompt((USER, last), goes_on=True))
    assert tokenizer.decode(prompt_ids) == BEGUN + end
    assert opening_state(prompt_ids, tokenizer, find_format(tokenizer)) == state


def test_without_going_on_the_message_is_closed(tokenizer: Any) -> None:
    asked = ChatPrompt((USER, ChatMessage("assistant", "Paris is")))
    text = tokenizer.decode(ChatTemplate(tokenizer).tokens(asked))
    assert text.endswith("Paris is<|im_end|>\n<|im_start|>assistant\n<think>\n")


def test_a_template_that_leaves_the_message_out_is_reported(tmp_path: Path) -> None:
    template = "{% for each in messages if each.role == 'user' %}{{ each.content }}{% endfor %}"
    chat = ChatTemplate(templated(tmp_path / "made", template))
    with pytest.raises(PromptError, match="leaves out the content of the last message"):
        chat.tokens(ChatPrompt((USER, ChatMessage("assistant", "Paris")), goes_on=True))


def test_a_begun_message_of_gpt_oss_has_its_header_alone(tmp_path: Path) -> None:
    tags = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
    tokenizer = templated(tmp_path / "made", "", tags)
    header = "<|start|>assistant<|channel|>analysis<|message|>"
    prompt_ids = tokenizer.encode("<|start|>user<|message|>Hi<|end|>" + header + "Hm, " * 400)
    assert opening_header(list(prompt_ids), tokenizer) == header
