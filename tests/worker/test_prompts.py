"""The context in force, and what those are told that it is too short for."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.answers import RequestFailed
from protocol.memory import Bound
from protocol.prompts import ChatMessage, ChatPrompt, TokenPrompt
from protocol.requests import Generate, Sampling, Tools
from protocol.tokens import pack
from tests.support import shapes
from tests.support.templates import templated
from worker.chat.template import ChatTemplate
from worker.context import Context, ContextInForce
from worker.engines.room import CacheShape, Room
from worker.engines.sequence import Sequence
from worker.loading import LoadedModel, load
from worker.prompt_cache.path import Paths
from worker.prompts import Prepared, _boundaries, prepare

WHY = "At most 1.0 GB can be had."


def test_it_follows_what_can_be_had() -> None:
    context = ContextInForce(4096)
    assert context.now == Context(4096)
    context.take(Bound(1, 2048, WHY))
    assert context.now == Context(2048, f" {WHY} The model itself could hold 4096.")
    for bound in (Bound(9, 4096, WHY), Bound(9, 5000, WHY), Bound(9, None, WHY), None):
        context.take(Bound(1, 2048, WHY))
        context.take(bound)
        assert context.now == Context(4096)


def test_who_waited_in_vain_is_told_why() -> None:
    context = ContextInForce(4096)
    room = Room(CacheShape(1, 0, 1.0), limit_bytes=10, most_bytes=512)
    context.take(Bound(512, None, WHY))
    asked = Sequence("r", [0] * 600, 100, None, ignore_eos=False)
    failed = context.hopeless(asked, room)
    assert (failed.request_id, failed.code) == ("r", "context_length_exceeded")
    assert failed.message == (
        "This model's maximum context length is 512 tokens. However, the prompt is too long for an "
        f"answer of up to 100: it has 600, together 700. {WHY} The model itself could hold 4096. "
        "Shorten the prompt or ask for fewer tokens."
    )
    failed = context.hopeless(Sequence("r", [0] * 9, 900, None, ignore_eos=False), room)
    assert (failed.code, failed.field) == ("context_length_exceeded", "max_tokens")
    assert "of up to 900 (max_tokens) is too large: the prompt has 9, together" in failed.message
    failed = context.hopeless(asked.rest([1]), room)
    assert "too long: it has 601. At most" in failed.message


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load(str(shapes.DEMO), lambda _done, _total: None, lambda: False)


def _told(demo: LoadedModel, tokens: int, *, cut: bool) -> Prepared | RequestFailed:
    prompt = TokenPrompt(pack([5] * tokens))
    generate = Generate("r", prompt, Sampling(seed=0), max_tokens=32_000, cut_to_context=cut)
    return prepare(generate, demo, Context(100), Paths(b"", None, needs_snapshots=False))


def test_an_answer_is_cut_to_what_the_context_leaves(demo: LoadedModel) -> None:
    prepared = _told(demo, 60, cut=True)
    assert isinstance(prepared, Prepared)
    assert (prepared.sequence.max_tokens, prepared.sequence.open_end) == (40, True)


def test_a_prompt_is_never_cut(demo: LoadedModel) -> None:
    failed = _told(demo, 100, cut=True)
    assert isinstance(failed, RequestFailed)
    assert (failed.code, failed.field) == ("context_length_exceeded", "prompt")
    assert "the prompt is too long: it has 100, which leaves no room" in failed.message


def test_the_answer_is_named_where_the_prompt_alone_would_fit(demo: LoadedModel) -> None:
    failed = _told(demo, 60, cut=False)
    assert isinstance(failed, RequestFailed)
    assert (failed.code, failed.field) == ("context_length_exceeded", "max_tokens")
    assert failed.message == (
        "This model's maximum context length is 100 tokens. However, an answer of up to 32000 "
        "(max_tokens) is too large: the prompt has 60, together 32060. Ask for at most 40, or "
        "shorten the prompt."
    )


def test_a_context_of_nothing_is_no_mistake_of_the_client() -> None:
    context = ContextInForce(4096)
    context.take(Bound(515_000_000, 2048, WHY))
    room = Room(CacheShape(1000, 0, 1.0), 515_000_000, 515_000_000, fixed_bytes=600_000_000)
    failed = context.hopeless(Sequence("r", [0] * 9, 16, None, ignore_eos=False), room)
    assert (failed.code, failed.field) == ("insufficient_memory", None)
    assert failed.message == (
        "The model is loaded, but not even the shortest request can run: with one it needs 601 MB. "
        f"{WHY} Raise memory.budget, unload what is pinned, or take a smaller model."
    )


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
    whole, system = _boundaries(generate, prompt_ids, chat)
    assert whole == len(prompt_ids) - 1
    assert 10 < len(system_ids) - 1 <= system <= len(system_ids)
