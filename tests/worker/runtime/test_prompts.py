"""The context in force, and what those are told that it is too short for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.answers import RequestFailed
from protocol.life import Bound
from protocol.message_base import pack
from protocol.requests import (
    Generate,
    Sampling,
    TokenPrompt,
)
from tests.support import shapes
from worker.engines.room import CacheRoom, CacheSizes, Context, ContextInForce
from worker.engines.sequence import Sequence
from worker.load.loading import LoadedModel, load
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import PreparedRequest, prepare

WHY = "At most 1.0 GB can be had."


def test_it_follows_what_can_be_had() -> None:
    context = ContextInForce(4096)
    assert context.now == Context(4096)
    context.set_bound(Bound(1, 2048, WHY))
    assert context.now == Context(2048, f" {WHY} The model itself could hold 4096.")
    for bound in (Bound(9, 4096, WHY), Bound(9, 5000, WHY), Bound(9, None, WHY), None):
        context.set_bound(Bound(1, 2048, WHY))
        context.set_bound(bound)
        assert context.now == Context(4096)


def test_a_request_that_waited_in_vain_gets_the_reason() -> None:
    context = ContextInForce(4096)
    room = CacheRoom(CacheSizes(1, 0, 1.0), limit_bytes=10, most_bytes=512)
    context.set_bound(Bound(512, None, WHY))
    failed = context.hopeless(Sequence("r", [0] * 600, 100, None, ignore_eos=False), room)
    assert (failed.request_id, failed.code) == ("r", "context_length_exceeded")
    assert failed.message == (
        "This model's maximum context length is 512 tokens. However, the prompt is too long: it "
        f"has 600. {WHY} The model itself could hold 4096. Shorten the prompt."
    )


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load(str(shapes.DEMO), lambda _done, _total: None, lambda: False)


def _refusal(
    demo: LoadedModel, tokens: int, most: int = 32_000, *, counts: bool = False
) -> PreparedRequest | RequestFailed:
    prompt = TokenPrompt(pack([5] * tokens))
    generate = Generate("r", prompt, Sampling(seed=0), max_tokens=most, counts=counts)
    return prepare(generate, demo, Context(100), Paths(b"", None, needs_snapshots=False))


@pytest.mark.parametrize(("most", "given"), [(32_000, 40), (41, 40), (39, 39)])
def test_an_answer_is_cut_to_what_the_context_leaves(
    demo: LoadedModel, most: int, given: int
) -> None:
    prepared = _refusal(demo, 60, most)
    assert isinstance(prepared, PreparedRequest)
    assert prepared.sequence.max_tokens == given


def test_a_prompt_is_never_cut(demo: LoadedModel) -> None:
    failed = _refusal(demo, 100)
    assert isinstance(failed, RequestFailed)
    assert (failed.code, failed.field) == ("context_length_exceeded", "prompt")
    assert "the prompt is too long: it has 100, which leaves no room" in failed.message


def test_a_prompt_of_any_length_is_counted(demo: LoadedModel) -> None:
    prepared = _refusal(demo, 200, 0, counts=True)
    assert isinstance(prepared, PreparedRequest)
    assert (len(prepared.prompt_ids), prepared.prompt_only) == (200, False)


def test_a_prompt_without_an_answer_is_computed_within_the_context(demo: LoadedModel) -> None:
    prepared = _refusal(demo, 60, 0)
    assert isinstance(prepared, PreparedRequest)
    assert (prepared.sequence.max_tokens, prepared.prompt_only) == (1, True)
    assert isinstance(_refusal(demo, 200, 0), RequestFailed)


def test_a_context_of_nothing_is_no_mistake_of_the_client() -> None:
    context = ContextInForce(4096)
    context.set_bound(Bound(515_000_000, 2048, WHY))
    room = CacheRoom(CacheSizes(1000, 0, 1.0), 515_000_000, 515_000_000, fixed_bytes=600_000_000)
    failed = context.hopeless(Sequence("r", [0] * 9, 16, None, ignore_eos=False), room)
    assert (failed.code, failed.field) == ("insufficient_memory", None)
    assert failed.message == (
        "The model is loaded, but not even the shortest request can run: with one it needs 601 MB. "
        f"{WHY} Raise memory.budget, unload pinned models, or take a smaller model."
    )


def _predicted(loaded: LoadedModel, text: str, context_tokens: int = 100) -> tuple[int, ...]:
    generate = Generate("r", TokenPrompt(pack([5])), Sampling(seed=0), prediction=text)
    paths = Paths(b"", None, needs_snapshots=False)
    prepared = prepare(generate, loaded, Context(context_tokens), paths)
    assert isinstance(prepared, PreparedRequest)
    return prepared.sequence.prediction


def test_a_prediction_has_the_tokens_of_an_answer(demo: LoadedModel) -> None:
    text = "Bulkhead is a local model server."
    assert demo.tokenizer.decode(list(_predicted(demo, text))) == text
    assert _predicted(demo, "") == ()


def test_a_prediction_beyond_the_context_is_cut(demo: LoadedModel) -> None:
    long = _predicted(demo, "one two " * 100_000)
    assert len(long) == 100
    assert _predicted(demo, "one two " * 100_000, 50) == long[:50]


def test_a_prediction_has_no_token_that_the_model_lacks(demo: LoadedModel) -> None:
    token_ids = _predicted(demo, "one two three")
    lacks = max(token_ids)
    small = replace(demo, vocabulary=lacks)
    assert _predicted(small, "one two three") == tuple(
        token_id for token_id in token_ids if token_id < lacks
    )
