"""The deltas of one request's tokens."""

from __future__ import annotations

from dataclasses import replace

from protocol.answers import Guesses
from protocol.requests import Generate, Sampling, TextPrompt
from tests.support import shapes
from worker.engines.room import Context
from worker.engines.sequence import Token
from worker.load.loading import load
from worker.process.answering import Answering
from worker.prompt_cache.path import BLOCK_TOKENS, Paths
from worker.runtime.prompts import PreparedRequest, prepare


def test_the_guesses_of_each_token_are_in_its_delta() -> None:
    demo = load(str(shapes.DEMO), lambda _done, _total: None, lambda: False)
    generate = Generate("r", TextPrompt("Hello"), Sampling(seed=0), max_tokens=3)
    prepared = prepare(generate, demo, Context(100), Paths(b"", None, needs_snapshots=False))
    assert isinstance(prepared, PreparedRequest)
    answering = Answering("r")
    answering.start(prepared)
    tokens = [
        Token("r", 5, None, rejected=4),
        Token("r", 5, None, guessed=True),
        Token("r", 5, "length", guessed=True, rejected=1),
    ]
    deltas = [answering.delta(token) for token in tokens]
    assert [delta and delta.guesses for delta in deltas] == [
        Guesses(0, 4),
        Guesses(1, 0),
        Guesses(1, 1),
    ]


def test_last_delta_tells_what_the_disk_had_of_the_prompt() -> None:
    demo = load(str(shapes.DEMO), lambda _done, _total: None, lambda: False)
    generate = Generate("r", TextPrompt("Hello " * 200), Sampling(seed=0), max_tokens=1)
    prepared = prepare(generate, demo, Context(2000), Paths(b"", None, needs_snapshots=False))
    assert isinstance(prepared, PreparedRequest)
    sequence = prepared.sequence
    assert sequence.path is not None
    stored = replace(sequence, path=replace(sequence.path, stored=2))
    answering = Answering("r")
    answering.start(replace(prepared, sequence=stored))
    delta = answering.delta(Token("r", 5, "length", cached_tokens=64))
    assert delta is not None
    assert delta.usage is not None
    assert (delta.usage.cached_tokens, delta.usage.stored_tokens) == (64, 2 * BLOCK_TOKENS)
