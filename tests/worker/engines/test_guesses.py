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

import pytest

from protocol.message import pack
from protocol.requests import Constraint, Generate, Sampling, TokenPrompt
from tests.support import shapes
from worker.engines.batched import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.limits import Context
from worker.engines.room import CacheRoom, CacheSizes
from worker.engines.sequence import Sequence, Token
from worker.load.loading import LoadedModel, load
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import Prepared, prepare

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
        "properties": {f"key_number_{at}": {"enum": [1, 2]} for at in range(10)},
        "required": [f"key_number_{at}" for at in range(10)],
        "additionalProperties": False,
    }
)
EACH, MANY = 4, 60
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


def _engine(model: LoadedModel, room: CacheRoom, *, guesses: bool) -> BatchedEngine:
    engine = BatchedEngine(model.model, model.eos_token_ids, 32, replace(room), guesses=guesses)
    # As on a machine where a wide step costs hardly more: here that would depend on its load.
    engine.step_costs.ratio = lambda *_: 1.0  # type: ignore[method-assign]
    return engine


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
    assert isinstance(prepared, Prepared), prepared
    return prepared.sequence


def _take(made: dict[str, Made], tokens: list[Token]) -> None:
    for each in tokens:
        own = made[each.request_id]
        own.token_ids.append(each.token_id)
        own.guessed += each.guessed
        own.rejected += each.rejected
        if each.score is not None:
            own.logprobs.append(each.score.logprob)


def _plain(model: LoadedModel, requests: list[Generate]) -> dict[str, Made]:
    """The texts of requests, each of which runs alone and without guesses."""
    engine = _engine(model, UNBOUNDED, guesses=False)
    made = {each.request_id: Made([], []) for each in requests}
    for each in requests:
        engine.add(_sequence(model, each, []))
        while engine.active + engine.waiting:
            _take(made, engine.step())
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
) -> dict[str, Made]:
    """The same requests in groups of rows, that join at any time and are put aside and resumed."""
    engine = _engine(model, IN_GROUPS, guesses=guesses)
    made = {each.request_id: Made([], []) for each in requests}
    predicted = {name: _predicted(chance, own.token_ids) for name, own in plain.items()}
    coming = list(requests)
    while coming or engine.active + engine.waiting:
        if coming and chance.random() < 0.4:
            each = coming.pop()
            sequence = _sequence(model, each, made[each.request_id].token_ids)
            engine.add(replace(sequence, prediction=predicted[each.request_id]))
        _take(made, engine.step())
        if chance.random() < 0.03 and engine._rows:
            batch = engine._batches[0]
            if len(batch):
                engine._add_first(batch.put_aside(batch.least_missed()[0]))
        if chance.random() < 0.02:
            # As when the worker dies: another one goes on behind what was delivered.
            going = {row.sequence.request_id for batch in engine._batches for row in batch.rows}
            going |= {each.request_id for each in engine._waiting}
            coming += [each for each in requests if each.request_id in going]
            engine.close()
            engine = _engine(model, IN_GROUPS, guesses=guesses)
    engine.close()
    return made


def _same(model: LoadedModel, seed: int, most_rows: int) -> tuple[int, int]:
    """Returns how many guesses were right and wrong."""
    chance = random.Random(seed)
    requests = [_request(chance, f"r{at}") for at in range(chance.randrange(1, most_rows + 1))]
    plain = _plain(model, requests)
    for guesses in (False, True):
        guessed = _anew(model, requests, chance, plain, guesses=guesses)
        for each in requests:
            own, other = guessed[each.request_id], plain[each.request_id]
            assert own.token_ids == other.token_ids, (seed, each)
            assert own.logprobs == pytest.approx(other.logprobs, abs=NEARLY)
    return sum(each.guessed for each in guessed.values()), sum(
        each.rejected for each in guessed.values()
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_text_is_the_same(shape: str, root: Path) -> None:
    counts = [_same(_model(shape, root), seed, 6) for seed in range(EACH)]
    right, wrong = map(sum, zip(*counts, strict=True))
    assert right > 20
    assert wrong > 5


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shape", SHAPES)
def test_text_of_many_is_the_same(shape: str, root: Path) -> None:
    for seed in range(1000, 1000 + MANY):
        _same(_model(shape, root), seed, 16)
