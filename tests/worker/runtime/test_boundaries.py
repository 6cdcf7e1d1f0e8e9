"""The places of a prompt where later prompts part from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.requests import ChatMessage, ChatPrompt, Generate, Sampling, TextPrompt, Tools
from tests.support.templates import templated
from tests.support.tokenizers import byte_level
from worker.prompt_cache.path import BLOCK_TOKENS
from worker.runtime.prompts import find_boundaries
from worker.template.chat_template import ChatTemplate

USER = "".join(f" What do you say to number {number}?" for number in range(20))
HISTORY = (
    ChatMessage("system", "Be brief." * 40),
    *(ChatMessage(role, USER) for _ in range(4) for role in ("user", "assistant")),
    ChatMessage("user", USER),
)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    return ChatTemplate(byte_level(tmp_path_factory.mktemp("model")))


def _depths(chat: ChatTemplate, *messages: ChatMessage) -> tuple[list[int], set[int]]:
    """The tokens of these messages, and the depths of their boundaries in blocks."""
    generate = Generate("r", ChatPrompt(messages), Sampling(seed=0))
    token_ids = chat.tokens(ChatPrompt(messages))
    return token_ids, {
        boundary // BLOCK_TOKENS for boundary in find_boundaries(generate, token_ids, chat)
    }


def _alike(one: list[int], other: list[int]) -> int:
    """The whole blocks in which these tokens begin alike."""
    pairs = enumerate(zip(one, other, strict=False))
    found = next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
    return found // BLOCK_TOKENS


@pytest.mark.parametrize(
    ("turn", "again"),
    [
        # A message's first tokens, which stand for its role, may be in another block than the rest.
        pytest.param((*HISTORY, ChatMessage("assistant", "No"), HISTORY[1]), 1, id="goes on"),
        pytest.param((*HISTORY[:-1], ChatMessage("user", "So?")), 1, id="another last message"),
        pytest.param((*HISTORY[:-2], ChatMessage("assistant", "Yes")), 5, id="another answer"),
        pytest.param((HISTORY[0], ChatMessage("user", "So?")), 1, id="the system prompt alone"),
    ],
)
def test_few_blocks_lie_between_a_boundary_and_where_a_turn_parts(
    chat: ChatTemplate, turn: tuple[ChatMessage, ...], again: int
) -> None:
    token_ids, depths = _depths(chat, *HISTORY)
    alike = _alike(token_ids, chat.tokens(ChatPrompt(turn)))
    assert alike - max(depth for depth in depths if depth <= alike) <= again


def test_boundaries_are_few_however_many_messages_there_are(chat: ChatTemplate) -> None:
    many = HISTORY + 20 * HISTORY[1:]
    token_ids, depths = _depths(chat, *many)
    assert len(chat.message_starts(token_ids)) == len(many) + 1
    assert len(depths) <= 12


def test_a_template_without_special_tokens_has_no_starts_of_messages(tmp_path: Path) -> None:
    template = "{% for each in messages %}### {{ each.role }}\n{{ each.content }}{% endfor %}"
    chat = ChatTemplate(templated(tmp_path / "model", template))
    token_ids, depths = _depths(chat, *HISTORY)
    assert chat.message_starts(token_ids) == []
    assert len(depths) == 2


def test_a_prompt_without_messages_is_cached_whole(chat: ChatTemplate) -> None:
    generate = Generate("r", TextPrompt("Hi"), Sampling(seed=0))
    assert find_boundaries(generate, [5] * 90, chat) == [90]


def test_boundaries_are_those_of_the_same_tools_and_arguments(tmp_path: Path) -> None:
    template = (
        "{{ effort }}{% for each in tools %}{{ each.name }}{% endfor %}"
        "{% for each in messages %}{{ each.content }}{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    chat = ChatTemplate(templated(tmp_path / "model", template))
    prompt = ChatPrompt(
        (ChatMessage("system", "Be brief."), ChatMessage("user", "Hi")), '{"effort": "high"}'
    )
    tools = Tools(definitions='[{"name": "weather"}]')
    generate = Generate("r", prompt, Sampling(seed=0), tools=tools)
    prompt_ids = chat.tokens(prompt, tools)
    system_ids = chat.tokens(prompt, tools, prompt.messages[:1], asking=False)
    whole, system = find_boundaries(generate, prompt_ids, chat)
    assert whole == len(prompt_ids) - 1
    assert 10 < len(system_ids) - 1 <= system <= len(system_ids)
