"""What a model writes under a constraint matches it, whoever shares the batch and after a break."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

import jsonschema
import pytest

from protocol.messages import Constraint, Generate, Sampling, TextPrompt, TokenPrompt
from protocol.tokens import pack
from tests.support import shapes
from tests.worker.structure.generators import random_regex, random_schema
from worker.engines.batched import BatchedEngine
from worker.engines.room import CacheShape, Room
from worker.engines.sequence import Engine
from worker.engines.sequential import SequentialEngine
from worker.loading import LoadedModel, load
from worker.prompt_cache.path import Paths
from worker.prompts import Context, Prepared, prepare

ROWS = 16
SHORT, SCHEMAS, REGEXES = 24, 500, 200
PATHS = Paths(b"", None, needs_snapshots=False)
UNBOUNDED = Room(CacheShape(0, 0, 1.0))


@dataclass
class Answer:
    token_ids: list[int]
    text: str = ""
    finish_reason: str | None = None


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load(str(shapes.DEMO), lambda _done, _total: None, lambda: False)


def _request(
    request_id: str,
    constraint: Constraint | None,
    *,
    seed: int = 1,
    temperature: float = 1.0,
    max_tokens: int = 160,
    ignore_eos: bool = False,
) -> Generate:
    return Generate(
        request_id=request_id,
        prompt=TextPrompt(f"Answer number {request_id}: "),
        sampling=Sampling(seed=seed, temperature=temperature),
        max_tokens=max_tokens,
        constraint=constraint,
        ignore_eos=ignore_eos,
    )


def _prepared(model: LoadedModel, generate: Generate) -> Prepared:
    prepared = prepare(generate, model, Context(4096), PATHS)
    assert isinstance(prepared, Prepared), prepared
    return prepared


def _batched(model: LoadedModel) -> Engine:
    return BatchedEngine(model.model, model.eos_token_ids, ROWS, UNBOUNDED)


def _answers(
    model: LoadedModel, requests: Iterable[Generate], engine: Engine | None = None
) -> dict[str, Answer]:
    """As many at a time as the engine takes, the next when one has ended."""
    engine = engine or _batched(model)
    prepared = {each.request_id: _prepared(model, each) for each in requests}
    answers = {each: Answer([]) for each in prepared}
    for each in prepared.values():
        engine.add(each.sequence)
    while engine.active + engine.waiting:
        for token in engine.step():
            answer = answers[token.request_id]
            answer.token_ids.append(token.token_id)
            answer.finish_reason = token.finish_reason
            text = prepared[token.request_id].text
            if token.finish_reason != "stop":
                answer.text += text.add(token.token_id)
            if token.finish_reason is not None:
                answer.text += text.finish()
        assert engine.take_broken() == []
    engine.close()
    return answers


def _check(model: LoadedModel, constraints: list[Constraint], seed: int) -> int:
    """All that are complete match; returns how many that are."""
    requests = [_request(str(at), each, seed=seed + at) for at, each in enumerate(constraints)]
    answers = _answers(model, requests)
    complete = 0
    for at, constraint in enumerate(constraints):
        answer = answers[str(at)]
        if answer.finish_reason == "length":
            continue
        complete += 1
        if constraint.kind == "regex":
            assert re.fullmatch(constraint.source, answer.text), (constraint.source, answer.text)
        else:
            jsonschema.validate(json.loads(answer.text), json.loads(constraint.source))
    return complete


def _schemas(count: int, seed: int) -> list[Constraint]:
    chance = random.Random(seed)
    return [Constraint("json_schema", json.dumps(random_schema(chance))) for _ in range(count)]


def _regexes(count: int, seed: int) -> list[Constraint]:
    chance = random.Random(seed)
    return [Constraint("regex", random_regex(chance)) for _ in range(count)]


def test_complete_answers_match(model: LoadedModel) -> None:
    constraints = [*_schemas(SHORT, 1), *_regexes(SHORT // 2, 2)]
    assert _check(model, constraints, seed=1) > len(constraints) * 0.6


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_complete_answers_of_many_match(model: LoadedModel) -> None:
    constraints = [*_schemas(SCHEMAS, 3), *_regexes(REGEXES, 4)]
    assert _check(model, constraints, seed=100) > len(constraints) * 0.6
