"""Which rows mlx-lm samples, in which order, and what it leaves out: it promises none of this."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator

from tests.support import shapes
from worker.load.loading import load
from worker.mlx_lm import rows
from worker.mlx_lm.generator import Generator, NewRow, Tap

FIRST = 10
PROMPTS = [[20, 21, 22], list(range(30, 70)), [80]]


@pytest.fixture(scope="module")
def model() -> Any:
    return load(str(shapes.DEMO), lambda _done, _total: None, lambda: False).model


def _numbered(model: Any, rows: int = 8, prompts: int = 3) -> tuple[Generator, list[int]]:
    """A row's token is its own number; and how many rows each call of the sampler had."""
    tap = Tap(model)
    calls: list[int] = []

    def sampler(logprobs: mx.array) -> mx.array:
        calls.append(len(tap.rows()))
        return mx.array([FIRST + row for row in tap.rows()], dtype=mx.uint32)

    return Generator(tap, sampler, rows, prompts), calls


@pytest.mark.parametrize("seed", range(3))
def test_every_row_gets_what_was_sampled_for_it(seed: int, model: Any) -> None:
    """Whoever comes and leaves meanwhile."""
    chance = random.Random(seed)
    generator, calls = _numbered(model)
    numbers: set[int] = set()
    finished = removed = 0
    for step in range(60):
        for _ in range(chance.choice((0, 0, 1, 2, 5)) if step < 40 else 0):
            prompt = [1] * chance.choice((1, 1, 2, 6, 7, 8, 9, 15, 40))
            numbers.add(generator.insert(NewRow([prompt], chance.choice((1, 2, 9, 20)))))
        if numbers and chance.random() < 0.3:
            gone = chance.sample(sorted(numbers), min(len(numbers), chance.randrange(1, 3)))
            generator.remove(gone)
            numbers -= set(gone)
            removed += len(gone)
        for response in generator.step(7).tokens:
            assert response.token == FIRST + response.uid
            if response.finish_reason is not None:
                numbers.remove(response.uid)
                finished += 1
        assert set(generator.places()) <= numbers
    assert finished > 5
    assert removed > 3
    assert max(calls) >= 6
    generator.close()


def _last_first(batches: Callable[..., Any]) -> Callable[..., Any]:
    """mlx-lm as it might be: of prompts that wait the last one begins first."""

    def make(self: BatchGenerator, n: int) -> Any:
        waiting = [self._unprocessed_sequences.popleft() for _ in range(n)]
        self._unprocessed_sequences.extendleft(waiting)
        return batches(self, n)

    return make


def _all_in_one(find: Callable[..., Any]) -> Callable[..., Any]:
    """mlx-lm as it might be: rows are in one of its lists while they are sampled, too."""

    def find_all(self: BatchGenerator, uids: Any) -> Any:
        return dict.fromkeys(uids, (1, 0)) | find(self, uids)

    return find_all


@pytest.mark.parametrize(
    ("name", "other"), [("_make_batch", _last_first), ("_find_uids", _all_in_one)]
)
def test_rows_are_those_of_the_batch_whatever_mlx_lm_does_with_its_lists(
    name: str, other: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchGenerator, name, other(getattr(BatchGenerator, name)))
    generator, calls = _numbered(model)
    for length in (1, 9, 1, 9, 2, 1):
        generator.insert(NewRow([[1] * length], 3))
    made = [token for _ in range(12) for token in generator.step(4).tokens]
    assert [row_token.token for row_token in made] == [FIRST + token.uid for token in made]
    assert len(made) == 3 * 6
    assert max(calls) > 1
    generator.close()


def _greedy(logprobs: mx.array) -> mx.array:
    return mx.argmax(logprobs, axis=-1)


def test_rows_have_mlx_lms_tokens(model: Any) -> None:
    theirs = BatchGenerator(model)
    theirs.insert(PROMPTS, max_tokens=[12, 5, 9])
    own = _until_all_ended(lambda: theirs.next()[1])
    generator = Generator(Tap(model), _greedy, rows=8, prompts=8)
    for prompt, most in zip(PROMPTS, (12, 5, 9), strict=True):
        generator.insert(NewRow([prompt], most))
    made = _until_all_ended(lambda: generator.step(100).tokens)
    assert [(item.uid, item.token) for item in made] == [(item.uid, item.token) for item in own]
    theirs.close()
    generator.close()


def test_a_step_behind_a_prompt_is_not_observed(model: Any) -> None:
    """It would seem to take as long as both."""
    observed: list[float] = []
    generator = Generator(
        Tap(model),
        _greedy,
        rows=8,
        prompts=8,
        observe=lambda _rows, _width, seconds: observed.append(seconds),
    )
    generator.insert(NewRow([PROMPTS[0]], 100))
    while not generator.step(100).tokens:
        pass
    assert not observed
    generator.insert(NewRow([PROMPTS[1] * 50], 10))
    for _ in range(6):
        generator.step(20)
    assert not observed, "each of these steps followed a part of a prompt"
    generator.close()


class _Checker:
    """Greedy, for one row."""

    def __init__(self) -> None:
        self._guesses: list[int] = []

    def __call__(self, logprobs: mx.array) -> mx.array:
        return _greedy(logprobs)

    def possible(self, _row: int, guesses: list[int]) -> list[int]:
        return guesses

    def check(self, logprobs: mx.array, _logits: mx.array, rows: Any) -> mx.array:
        self._guesses = list(rows[0].guesses)
        return _greedy(logprobs)

    def accept(self, drawn: list[int]) -> list[int]:
        right = [one == other for one, other in zip(self._guesses, drawn, strict=False)]
        return [right.index(False) if False in right else len(right)]


class _ToldGuesser:
    """Guesses one token if told to."""

    told = False

    def is_likely(self, _rows: Any) -> bool:
        return self.told

    def guess(self, _rows: Any, _first: Any, _most: Any, _draft: Any) -> list[list[int]]:
        return [[1] if self.told else []]

    def record(self, _row: int, _token: int) -> None:
        """It learns nothing."""


def test_a_plain_step_behind_guesses_is_not_observed(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends before its own tokens are computed, and would seem to take no time."""
    # Else a busy machine would make pauses of its own.
    monkeypatch.setattr(rows, "_PAUSE_S", 60.0)
    widths: list[int] = []
    guesser, checker = _ToldGuesser(), _Checker()
    generator = Generator(
        Tap(model),
        checker,
        rows=8,
        prompts=8,
        guesser=guesser,
        observe=lambda _rows, width, _seconds: widths.append(width),
    )
    generator.insert(NewRow([PROMPTS[0]], 100))
    while not generator.step(100).tokens:
        pass
    seen = []
    for told in (False, False, True, True, False, False):
        guesser.told = told
        before = len(widths)
        generator.step()
        seen.append(widths[before:])
    assert seen == [[], [1], [2], [2], [], [1]]
    generator.close()


def _until_all_ended(step: Callable[[], list[Any]]) -> list[Any]:
    made: list[Any] = []
    while sum(item.finish_reason is not None for item in made) < len(PROMPTS):
        made += step()
    return made
