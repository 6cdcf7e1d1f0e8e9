"""What a request changes of logits holds in every engine, beside others, and after a break."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.answers import RequestFailed
from protocol.message_base import pack
from protocol.requests import Generate, Sampling, TokenPrompt
from tests.support import shapes
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, CacheSizes, Context
from worker.engines.row_computer import make_draft
from worker.engines.sequence import Engine, Sequence
from worker.engines.sequential import SequentialEngine
from worker.load.loading import LoadedModel, load
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import PreparedRequest, prepare
from worker.sampling.adjustments import banned_sequences

UNBOUNDED = CacheRoom(CacheSizes(0, 0, 1.0))
PROMPT = [5 + 7 * index % 600 for index in range(40)]
BUILDERS: dict[str, Callable[[Path], Path]] = {
    "full attention": lambda _: shapes.DEMO,
    "chunked attention": shapes.chunked_attention,
}
SAMPLINGS = {
    "plain": Sampling(seed=1, temperature=0.0),
    "seeded": Sampling(seed=2, temperature=1.2, top_p=0.95),
    "frequency": Sampling(seed=3, temperature=0.0, frequency_penalty=1.5),
    "presence": Sampling(seed=4, temperature=1.3, presence_penalty=2.0),
    "repetition": Sampling(seed=5, temperature=0.0, repetition_penalty=1.4),
    "bias": Sampling(seed=6, temperature=0.9, logit_bias=((9, 4.0), (300, -100.0))),
    "allowed": Sampling(seed=7, temperature=1.0, allowed_token_ids=tuple(range(20, 40))),
    "words": Sampling(seed=8, temperature=0.0, bad_words=("e", "the", "a")),
    "xtc": Sampling(seed=9, temperature=1.0, xtc_probability=0.6, xtc_threshold=0.05),
    "all": Sampling(
        seed=10,
        temperature=1.1,
        repetition_penalty=1.2,
        repetition_context_tokens=7,
        frequency_penalty=0.4,
        presence_penalty=-0.3,
        logit_bias=((11, 2.0),),
        bad_words=("s",),
        min_tokens=6,
        xtc_probability=0.3,
    ),
}


@pytest.fixture(scope="module", params=BUILDERS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = BUILDERS[request.param](tmp_path_factory.mktemp("models") / "model")
    return load(str(folder), lambda _done, _total: None, lambda: False)


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load(str(shapes.DEMO), lambda _done, _total: None, lambda: False)


def _engine(model: LoadedModel) -> Engine:
    if Caches(model.model).can_be_merged:
        return BatchedEngine(model.model, model.eos_token_ids, 32, UNBOUNDED)
    return SequentialEngine(model.model, model.eos_token_ids, UNBOUNDED)


def _ahead(model: LoadedModel) -> Engine:
    """The model is its own draft."""
    draft = make_draft(model.model, model.model, 3)
    engine = BatchedEngine(model.model, model.eos_token_ids, 32, UNBOUNDED, draft=draft)
    engine.step_costs.ratio = lambda _, width: float(width > 0)  # type: ignore[method-assign]
    return engine


def _prepare(
    model: LoadedModel,
    name: str,
    sampling: Sampling,
    *,
    delivered: list[int] | None = None,
    max_tokens: int = 20,
    ignore_eos: bool = True,
) -> PreparedRequest | RequestFailed:
    generate = Generate(
        request_id=name,
        prompt=TokenPrompt(pack(PROMPT)),
        sampling=sampling,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        delivered=pack(delivered or []),
    )
    return prepare(generate, model, Context(4096), Paths(b"", None, needs_snapshots=False))


def _sequence(
    model: LoadedModel,
    name: str,
    sampling: Sampling,
    delivered: list[int] | None = None,
    max_tokens: int = 20,
    *,
    ignore_eos: bool = True,
) -> Sequence:
    prepared = _prepare(
        model,
        name,
        sampling,
        delivered=delivered,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
    )
    assert isinstance(prepared, PreparedRequest), prepared
    return prepared.sequence


def _run(engine: Engine, *sequences: Sequence) -> dict[str, list[int]]:
    for sequence in sequences:
        engine.add(sequence)
    made: dict[str, list[int]] = {values.request_id: [] for values in sequences}
    while engine.active + engine.waiting:
        for token in engine.step():
            made[token.request_id].append(token.token_id)
            if token.finish_reason == "stop":
                made[token.request_id].append(-1)
    return made


@pytest.fixture(scope="module")
def alone(model: LoadedModel) -> dict[str, list[int]]:
    return {
        name: _run(_engine(model), _sequence(model, name, sampling))[name]
        for name, sampling in SAMPLINGS.items()
    }


def test_they_do_something(demo: LoadedModel) -> None:
    engine = _engine(demo)
    sequences = [
        _sequence(demo, name, sampling, max_tokens=60) for name, sampling in SAMPLINGS.items()
    ]
    made = _run(engine, *sequences)
    assert len({tuple(values) for values in made.values()}) == len(SAMPLINGS)
    assert set(made["allowed"]) <= set(range(20, 40))
    plain, words = (
        {demo.tokenizer.decode([number]) for number in made[n]} for n in ("plain", "words")
    )
    assert plain & {"e", " the", " a"}
    assert not words & {"e", " the", " a"}


@pytest.mark.slow
def test_beside_each_other(model: LoadedModel, alone: dict[str, list[int]]) -> None:
    """Of different lengths, so that the rows' company changes."""
    sequences = [
        _sequence(model, name, sampling, max_tokens=20 - index)
        for index, (name, sampling) in enumerate(SAMPLINGS.items())
    ]
    made = _run(_engine(model), *sequences)
    for index, name in enumerate(SAMPLINGS):
        assert made[name] == alone[name][: 20 - index], name


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 7, 19])
def test_after_a_break(model: LoadedModel, alone: dict[str, list[int]], cut: int) -> None:
    rests = [
        _sequence(model, name, sampling, delivered=alone[name][:cut])
        for name, sampling in SAMPLINGS.items()
    ]
    made = _run(_engine(model), *rests)
    assert {name: alone[name][:cut] + made[name] for name in SAMPLINGS} == alone


def test_put_aside_and_taken_in_again(model: LoadedModel, alone: dict[str, list[int]]) -> None:
    room = CacheRoom(CacheSizes(0, 0, 1.0))
    engine = (
        BatchedEngine(model.model, model.eos_token_ids, 32, room)
        if Caches(model.model).can_be_merged
        else SequentialEngine(model.model, model.eos_token_ids, room)
    )
    names = ["plain", "all", "frequency"]
    made: dict[str, list[int]] = {name: [] for name in names}
    for name in names:
        engine.add(_sequence(model, name, SAMPLINGS[name]))
    steps = 0
    while engine.active + engine.waiting:
        steps += 1
        if steps in (6, 11):
            room.limit_bytes = -1
            engine.make_room()
            assert engine.active == 0
            room.limit_bytes = None
        for token in engine.step():
            made[token.request_id].append(token.token_id)
    assert made == {name: alone[name] for name in names}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_with_a_draft_model(demo: LoadedModel, name: str) -> None:
    sequence = _sequence(demo, name, SAMPLINGS[name])
    assert _run(_ahead(demo), sequence) == _run(_engine(demo), sequence)


def test_tokens_that_stop(model: LoadedModel, alone: dict[str, list[int]]) -> None:
    """A first time, and not among the first of them."""
    plain = alone["plain"]
    stop = plain[3]
    sampling = Sampling(seed=1, temperature=0.0, stop_token_ids=(stop,))
    sequence = _sequence(model, "r", sampling)
    assert _run(_engine(model), sequence)["r"] == [*plain[: plain.index(stop) + 1], -1]
    sampling = Sampling(seed=1, temperature=0.0, stop_token_ids=(stop,), min_tokens=8)
    made = _run(_engine(model), _sequence(model, "r", sampling))["r"]
    assert stop not in made[:8]
    assert len(made) > 8


def test_an_answer_that_would_end_at_once(demo: LoadedModel) -> None:
    """Its own end, too, is put off; where another worker goes on as well."""
    eos = next(iter(demo.eos_token_ids))
    eager = Sampling(seed=1, temperature=0.0, logit_bias=((eos, 100.0),))
    assert _run(_engine(demo), _sequence(demo, "r", eager, ignore_eos=False))["r"] == [eos, -1]
    patient = Sampling(seed=1, temperature=0.0, logit_bias=((eos, 100.0),), min_tokens=5)
    made = _run(_engine(demo), _sequence(demo, "r", patient, ignore_eos=False))["r"]
    assert made[5:] == [eos, -1]
    rest = _sequence(demo, "r", patient, delivered=made[:2], ignore_eos=False)
    assert _run(_engine(demo), rest)["r"] == made[2:]


@pytest.mark.parametrize(
    ("field", "sampling"),
    [
        ("logit_bias", Sampling(seed=1, logit_bias=((704, 1.0),))),
        ("allowed_token_ids", Sampling(seed=1, allowed_token_ids=(3, 9999))),
        ("stop_token_ids", Sampling(seed=1, stop_token_ids=(704,))),
        ("bad_words", Sampling(seed=1, bad_words=("abcdefgh" * 1000,))),
    ],
)
def test_impossible_settings_are_refused(demo: LoadedModel, field: str, sampling: Sampling) -> None:
    refused = _prepare(demo, "r", sampling)
    assert isinstance(refused, RequestFailed)
    assert (refused.code, refused.field) == ("invalid_request_error", field)
    assert field in refused.message


def test_words_as_sequences(demo: LoadedModel) -> None:
    """How they begin a text, and how they follow a space."""
    found = banned_sequences(["the", " the", "ship", "\n"], demo.tokenizer)
    assert len(found) == len(set(found))
    texts = [demo.tokenizer.decode(list(pair)) for pair in found]
    assert {"the", " the", "ship"} <= set(texts)
    assert banned_sequences([" "], demo.tokenizer) == []
