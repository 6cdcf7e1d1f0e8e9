"""Guesses and groups of rows change how fast a text is made, never the text: with any caches,
settings and company.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from protocol.message_base import pack
from protocol.requests import Constraint, Generate, Sampling, TokenPrompt
from tests.support import shapes
from tests.support.eagles import config_of, random_weights
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, CacheSizes, Context
from worker.engines.row_computer import make_draft
from worker.engines.sequence import Sequence, Token
from worker.load.loading import LoadedModel, load
from worker.mlx_lm.drafting import DraftModel
from worker.mlx_lm.eagle3 import Eagle3
from worker.mlx_lm.guessing import Draft
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import PreparedRequest, prepare
from worker.sampling.settings import RowSampling

UNBOUNDED = CacheRoom(CacheSizes(0, 0, 1.0))
# A few tokens of padding cost as much as a group of rows.
IN_GROUPS = CacheRoom(CacheSizes(1_000_000, 0, 1.0))
SHAPES: dict[str, Callable[[Path], Path]] = {
    "full": lambda _: shapes.DEMO,
    "sliding": shapes.sliding_window,
    "recurrent": shapes.state_space,
    "hybrid": shapes.hybrid,
    "quantized": shapes.full_attention,
}
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {f"key_number_{index}": {"enum": [1, 2]} for index in range(10)},
        "required": [f"key_number_{index}" for index in range(10)],
        "additionalProperties": False,
    }
)
EACH, MANY = 5, 60
# Probabilities of one text differ by rounding with the number of tokens in a step.
NEARLY = 1e-3


@functools.cache
def _model(shape: str, root: Path) -> LoadedModel:
    loaded = load(str(SHAPES[shape](root / shape)), lambda _done, _total: None, lambda: False)
    if shape == "quantized":
        loaded = replace(loaded, model=Caches(loaded.model, kv_bits=8).model)
    return loaded


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shapes")


@dataclass
class Made:
    token_ids: list[int]
    logprobs: list[float]
    guessed: int = 0
    rejected: int = 0


def _engine(
    model: LoadedModel, room: CacheRoom, *, guesses: bool = True, draft: Draft | None = None
) -> BatchedEngine:
    engine = BatchedEngine(
        model.model, model.eos_token_ids, 32, replace(room), guesses=guesses, draft=draft
    )
    # As on a machine where wide steps cost hardly more, and a drafter hardly anything: here that
    # would depend on its load.
    engine.step_costs.ratio = lambda _, width: float(width > 0)  # type: ignore[method-assign]
    return engine


def _draft(chance: random.Random, model: LoadedModel, root: Path) -> Draft | None:
    """None, a drafter that is always wrong, or one that is often right: the model itself, if it can
    forget.
    """
    other = _model("full", root).model
    kind = chance.choice(("none", "other", "own"))
    if kind == "none":
        return None
    own = kind == "own" and not DraftModel.unfit(model.model)
    return make_draft(model.model, model.model if own else other, chance.choice((1, 3, 7)))


def _eagle_3(chance: random.Random, model: LoadedModel, root: Path) -> Draft:
    """EAGLE-3 with random weights."""
    width = model.config["hidden_size"]
    config = config_of(32, model.vocabulary, target_hidden_size=width, draft_vocab_size=90)
    config["eagle_aux_hidden_state_layer_ids"] = [1, 2, 1]
    return make_draft(model.model, Eagle3(config, random_weights(config)), chance.choice((1, 3, 7)))


def _request(chance: random.Random, name: str) -> Generate:
    sampling = Sampling(
        seed=chance.randrange(1000),
        temperature=chance.choice((0.0, 0.0, 0.8, 1.3)),
        top_p=chance.choice((1.0, 0.9)),
        repetition_penalty=chance.choice((None, None, 1.3)),
        frequency_penalty=chance.choice((0.0, 0.0, 0.7)),
        min_tokens=chance.choice((0, 0, 10)),
        bad_words=chance.choice(((), (), ("the", "e"))),
        xtc_probability=chance.choice((0.0, 0.0, 0.5)),
    )
    return Generate(
        request_id=name,
        prompt=TokenPrompt(
            pack([chance.randrange(5, 600) for _ in range(chance.choice((1, 7, 40, 150)))])
        ),
        sampling=sampling,
        max_tokens=chance.choice((1, 2, 30, 60)),
        ignore_eos=chance.random() < 0.5,
        logprobs=chance.choice((None, None, 0, 3)),
        constraint=Constraint("json_schema", SCHEMA) if chance.random() < 0.25 else None,
    )


def _sequence(model: LoadedModel, generate: Generate, delivered: list[int]) -> Sequence:
    resumed = Generate(
        **{
            name: getattr(generate, name)
            for name in generate.__struct_fields__
            if name != "delivered"
        },
        delivered=pack(delivered),
    )
    prepared = prepare(resumed, model, Context(4096), Paths(b"", None, needs_snapshots=False))
    assert isinstance(prepared, PreparedRequest), prepared
    return prepared.sequence


def _collect(made: dict[str, Made], tokens: list[Token]) -> None:
    for token in tokens:
        own = made[token.request_id]
        own.token_ids.append(token.token_id)
        own.guessed += token.guessed
        own.rejected += token.rejected
        if token.score is not None:
            own.logprobs.append(token.score.logprob)


def _plain(model: LoadedModel, requests: list[Generate]) -> dict[str, Made]:
    """The texts of requests, each of which runs alone and without guesses."""
    engine = _engine(model, UNBOUNDED, guesses=False)
    made = {request.request_id: Made([], []) for request in requests}
    for request in requests:
        engine.add(_sequence(model, request, []))
        while engine.active + engine.waiting:
            _collect(made, engine.step())
    engine.close()
    return made


def _predicted(chance: random.Random, text: list[int]) -> tuple[int, ...]:
    """The text with some tokens changed, left out and added."""
    changed: list[int] = []
    for token_id in text:
        what = chance.random()
        if what < 0.03:
            changed.append(chance.randrange(5, 600))
        elif what > 0.03 + 0.03:
            changed += [token_id] * (1 if what < 0.97 else 2)
    return tuple(changed)


def _anew(
    model: LoadedModel,
    requests: list[Generate],
    chance: random.Random,
    plain: dict[str, Made],
    *,
    guesses: bool,
    draft: Draft | None,
) -> dict[str, Made]:
    """The same requests in groups of rows, that join at any time and are put aside and resumed."""
    engine = _engine(model, IN_GROUPS, guesses=guesses, draft=draft)
    made = {request.request_id: Made([], []) for request in requests}
    predicted = {
        name: _predicted(chance, alone.token_ids) if draft is None or chance.random() < 0.5 else ()
        for name, alone in plain.items()
    }
    coming = list(requests)
    while coming or engine.active + engine.waiting:
        if coming and chance.random() < 0.4:
            each = coming.pop()
            sequence = _sequence(model, each, made[each.request_id].token_ids)
            engine.add(replace(sequence, prediction=predicted[each.request_id]))
        _collect(made, engine.step())
        if chance.random() < 0.03 and engine._rows:
            batch = engine._batches[0]
            if len(batch):
                engine._add_first(batch.put_aside(batch.next_to_put_aside()[0]))
        if chance.random() < 0.02:
            # As when the worker dies: another one goes on behind what was delivered.
            going = {row.sequence.request_id for batch in engine._batches for row in batch.rows}
            going |= {values.request_id for values in engine._waiting}
            coming += [request for request in requests if request.request_id in going]
            engine.close()
            engine = _engine(model, IN_GROUPS, guesses=guesses, draft=draft)
    engine.close()
    return made


def _same(
    shape: str,
    root: Path,
    seed: int,
    most_rows: int,
    make: Callable[[random.Random, LoadedModel, Path], Draft | None] = _draft,
) -> tuple[int, int]:
    """Returns how many guesses were right and wrong."""
    model, chance = _model(shape, root), random.Random(seed)
    requests = [
        _request(chance, f"r{index}") for index in range(chance.randrange(1, most_rows + 1))
    ]
    plain = _plain(model, requests)
    draft = make(chance, model, root)
    for guesses in (False, True):
        guessed = _anew(model, requests, chance, plain, guesses=guesses, draft=draft)
        for request in requests:
            own, other = guessed[request.request_id], plain[request.request_id]
            assert own.token_ids == other.token_ids, (seed, request)
            assert own.logprobs == pytest.approx(other.logprobs, abs=NEARLY)
    return sum(made.guessed for made in guessed.values()), sum(
        made.rejected for made in guessed.values()
    )


@pytest.mark.parametrize(
    "shape",
    [pytest.param(shape, marks=() if shape == "hybrid" else pytest.mark.slow) for shape in SHAPES],
)
def test_text_is_the_same(shape: str, root: Path) -> None:
    counts = [_same(shape, root, seed, 6) for seed in range(EACH)]
    right, wrong = map(sum, zip(*counts, strict=True))
    assert right > 20
    assert wrong > 5


@pytest.mark.parametrize(
    "shape",
    [pytest.param(shape, marks=() if shape == "hybrid" else pytest.mark.slow) for shape in SHAPES],
)
def test_text_with_eagle_3_is_the_same(shape: str, root: Path) -> None:
    for seed in range(20, 23):
        _same(shape, root, seed, 6, _eagle_3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shape", SHAPES)
def test_text_of_many_is_the_same(shape: str, root: Path) -> None:
    for seed in range(1000, 1000 + MANY):
        _same(shape, root, seed, 16)


class Counted:
    """A model that counts the tokens a row of its passes."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.passes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        self.passes.append(tokens.shape[1])
        logits: mx.array = self._model(tokens, cache=cache)
        return logits


def _greedy(name: str, tokens: int, prompt: list[int]) -> Sequence:
    return Sequence(name, prompt, tokens, None, ignore_eos=True)


def _run(engine: BatchedEngine, sequences: list[Sequence]) -> dict[str, Made]:
    made = {sequence.request_id: Made([], []) for sequence in sequences}
    for sequence in sequences:
        engine.add(sequence)
    while engine.active + engine.waiting:
        _collect(made, engine.step())
    return made


def test_a_model_that_drafts_for_itself_is_always_right(root: Path) -> None:
    """But for the last guesses of a row, which end with it."""
    model = _model("quantized", root)
    model = replace(model, model=model.model._model)
    counted = Counted(model.model)
    prompts = {
        f"r{index}": [5 + (7 * number + index) % 600 for number in range(30 + index)]
        for index in range(4)
    }
    sequences = [_greedy(name, 200, prompt) for name, prompt in prompts.items()]
    engine = _engine(model, UNBOUNDED, draft=make_draft(model.model, counted, 3))
    made = _run(engine, sequences)
    plain = _run(_engine(model, UNBOUNDED, guesses=False), sequences)
    assert {name: item.token_ids for name, item in made.items()} == {
        name: made.token_ids for name, made in plain.items()
    }
    assert sum(item.guessed for item in made.values()) > 550
    assert sum(item.rejected for item in made.values()) < 20
    # A prompt for each row, and then three passes for four tokens of all rows.
    assert len(counted.passes) < 4 + 3 * 200 / 4 * 1.2


class Rolled(Counted):
    """Another token is always the likeliest than that of the model."""

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        return mx.roll(super().__call__(tokens, cache), 1, axis=-1)


@pytest.mark.slow
def test_a_drafter_that_is_never_right_is_given_up(root: Path) -> None:
    model = _model("full", root)
    wrong = Rolled(model.model)
    engine = _engine(model, UNBOUNDED, draft=make_draft(model.model, wrong, 3))
    hot = [
        replace(_greedy(f"r{index}", 80, [index + 5] * 3), sampling=RowSampling(index, 1.0))
        for index in range(2)
    ]
    passes = []
    for _ in range(5):
        wrong.passes.clear()
        _run(engine, hot)
        passes.append(len(wrong.passes))
    # New rows trust it less and less.
    assert passes[0] > 30
    assert passes[-1] < 20
