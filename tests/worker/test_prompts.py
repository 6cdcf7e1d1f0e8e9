"""The context in force, and what those are told that it is too short for."""

from __future__ import annotations

from pathlib import Path

from protocol.messages import Bound, ChatMessage, ChatPrompt, Generate, Sampling, Tools
from tests.support.templates import templated
from worker.chat.template import ChatTemplate
from worker.engines.room import CacheShape, Room
from worker.engines.sequence import Sequence
from worker.prompts import Context, ContextInForce, _boundaries

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
    failed = context.hopeless(asked.rest([1]), room)
    assert "too long: it has 601. At most" in failed.message


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
