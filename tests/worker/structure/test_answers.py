"""What a model writes under a constraint matches it, whoever shares the batch and after a break."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

import jsonschema
import pytest
from msgspec import structs

from protocol.answers import AnswerPart, RequestFailed, Text
from protocol.message_base import pack
from protocol.requests import Constraint, Generate, Sampling, TextPrompt, TokenPrompt
from tests.worker.structure.generators import random_regex, random_schema
from worker.engines.batched_engine import BatchedEngine
from worker.engines.room import CacheRoom, CacheSizes, Context
from worker.engines.row_computer import make_draft
from worker.engines.sequence import Engine
from worker.engines.sequential import SequentialEngine
from worker.load.loading import LoadedModel
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import PreparedRequest, prepare

ROWS = 16
SHORT, SCHEMAS, REGEXES = 16, 500, 200
PATHS = Paths(b"", None, needs_snapshots=False)
UNBOUNDED = CacheRoom(CacheSizes(0, 0, 1.0))


@dataclass
class Answer:
    token_ids: list[int]
    text: str = ""
    finish_reason: str | None = None


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


def _prepared(model: LoadedModel, generate: Generate) -> PreparedRequest:
    prepared = prepare(generate, model, Context(4096), PATHS)
    assert isinstance(prepared, PreparedRequest), prepared
    return prepared


def _batched(model: LoadedModel) -> Engine:
    return BatchedEngine(model.model, model.eos_token_ids, ROWS, UNBOUNDED)


def _answers(
    model: LoadedModel, requests: Iterable[Generate], engine: Engine | None = None
) -> dict[str, Answer]:
    """As many at a time as the engine takes, the next when one has ended."""
    engine = engine or _batched(model)
    prepared = {request.request_id: _prepared(model, request) for request in requests}
    answers = {name: Answer([]) for name in prepared}
    for request in prepared.values():
        engine.add(request.sequence)
    while engine.active + engine.waiting:
        for token in engine.step():
            answer = answers[token.request_id]
            answer.token_ids.append(token.token_id)
            answer.finish_reason = token.finish_reason
            stream = prepared[token.request_id].answer
            if token.finish_reason != "stop":
                answer.text += _text(stream.add(token.token_id))
            if token.finish_reason is not None:
                answer.text += _text(stream.finish(complete=token.finish_reason == "stop"))
        assert engine.remove_broken() == []
    engine.close()
    return answers


def _text(parts: list[AnswerPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))


def _check(model: LoadedModel, constraints: list[Constraint], seed: int) -> int:
    """All that are complete match; returns how many that are."""
    requests = [
        _request(str(index), constraint, seed=seed + index)
        for index, constraint in enumerate(constraints)
    ]
    answers = _answers(model, requests)
    complete = 0
    for index, constraint in enumerate(constraints):
        answer = answers[str(index)]
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


PERSON = Constraint(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "age": {"type": "integer", "minimum": 0, "maximum": 120},
            },
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    ),
)
ARITHMETIC = Constraint(
    "grammar", 'start: sum\nsum: NUMBER ("+" NUMBER)~1..3\nNUMBER: /[0-9]{1,3}/'
)


def test_every_kind(model: LoadedModel) -> None:
    choices = ["left", 'a "quoted" one', "two\nlines", "⚓"]
    kinds = {
        "grammar": ARITHMETIC,
        "choice": Constraint("choice", json.dumps(choices)),
        "anchored": Constraint("regex", "^[ab]{3}$"),
    }
    answers = _answers(
        model, [_request(name, kind, max_tokens=300) for name, kind in kinds.items()]
    )
    assert {answer.finish_reason for answer in answers.values()} == {"stop"}
    assert re.fullmatch(r"\d{1,3}(\+\d{1,3}){1,3}", answers["grammar"].text)
    assert answers["choice"].text in choices
    assert re.fullmatch("[ab]{3}", answers["anchored"].text)


def test_an_answer_ends_when_it_is_whole_whatever_else_was_asked(model: LoadedModel) -> None:
    for temperature in (0.0, 1.0):
        request = _request("r", Constraint("regex", "ab{3}"), temperature=temperature)
        answer = _answers(model, [structs.replace(request, ignore_eos=True)])["r"]
        assert (answer.text, answer.finish_reason) == ("abbb", "stop")


def test_neighbours_are_the_same_beside_it(model: LoadedModel) -> None:
    free = [_request(f"n{index}", None, seed=index, max_tokens=40) for index in range(4)]
    alone = _answers(model, free)
    bound = [_request(f"b{index}", PERSON, seed=index) for index in range(3)]
    together = _answers(model, [bound[0], *free, *bound[1:]])
    assert {name: together[name].token_ids for name in alone} == {
        name: answer.token_ids for name, answer in alone.items()
    }
    one_by_one = {}
    for request in bound:
        one_by_one |= _answers(model, [request])
    assert {item: together[item].token_ids for item in one_by_one} == {
        name: item.token_ids for name, item in one_by_one.items()
    }


def test_the_sequential_engine_gives_the_same(model: LoadedModel) -> None:
    requests = [_request("p", PERSON, seed=3), _request("a", ARITHMETIC, seed=4)]
    sequential = SequentialEngine(model.model, model.eos_token_ids, UNBOUNDED)
    assert _answers(model, requests, sequential) == _answers(model, requests)


def test_it_goes_on_after_every_token(model: LoadedModel) -> None:
    """In another worker, and after a row was put aside."""
    request = _request("r", PERSON, seed=5)
    whole = _answers(model, [request])["r"]
    assert whole.finish_reason == "stop"
    prepared = _prepared(model, request)
    for cut in range(1, len(whole.token_ids), 6):
        delivered = whole.token_ids[:cut]
        again = structs.replace(
            request, prompt=TokenPrompt(pack(prepared.prompt_ids)), delivered=pack(delivered)
        )
        sequence = _prepared(model, again).sequence
        rest = prepared.sequence.rest(delivered)
        for values in (sequence, rest):
            engine = _batched(model)
            engine.add(values)
            made = []
            while engine.active + engine.waiting:
                made += [token.token_id for token in engine.step()]
            assert delivered + made == whole.token_ids, f"after {cut}"


def test_delivered_tokens_that_do_not_match_are_refused(model: LoadedModel) -> None:
    other = model.tokenizer.encode("hello", add_special_tokens=False)
    request = structs.replace(_request("r", PERSON), delivered=pack(other))
    refused = prepare(request, model, Context(4096), PATHS)
    assert isinstance(refused, RequestFailed)
    assert refused.field == "constraint"


def test_a_row_that_grows_too_complex_ends_alone(model: LoadedModel) -> None:
    # It is found out late: what it may take for one token is bounded, too.
    pattern = {"type": "string", "pattern": "(.{1,1000}x){1,1000}"}
    request = _request("r", Constraint("json_schema", json.dumps(pattern)), max_tokens=2000)
    engine = _batched(model)
    neighbour = _request("n", None, ignore_eos=True)
    sequences = [_prepared(model, item).sequence for item in (request, neighbour)]
    for sequence in sequences:
        engine.add(sequence)
    broken, made = [], {"r": 0, "n": 0}
    while engine.active + engine.waiting:
        for token in engine.step():
            made[token.request_id] += 1
        broken += engine.remove_broken()
    assert [broken_sequence.request_id for broken_sequence in broken] == ["r"]
    assert "lexer" in broken[0].reason
    assert 0 < made["r"] < 2000
    assert made["n"] == 160


def test_penalties_and_least_lengths_come_before_the_mask(model: LoadedModel) -> None:
    """What must be said again is, and an answer that is whole ends."""
    request = _request("r", Constraint("regex", "(ab){8}"))
    (whole,) = model.tokenizer.encode("a", add_special_tokens=False)
    sampling = structs.replace(
        request.sampling,
        repetition_penalty=2.0,
        frequency_penalty=2.0,
        min_tokens=100,
        logit_bias=((whole, -100.0),),
        bad_words=("a", "ab", "b"),
    )
    answers = _answers(
        model,
        [structs.replace(request, sampling=sampling), _request("n", None, max_tokens=8)],
    )
    assert (answers["r"].text, answers["r"].finish_reason) == ("ab" * 8, "stop")


def test_with_a_draft_model(model: LoadedModel) -> None:
    requests = [_request("p", PERSON, seed=3), _request("free", None, seed=3, max_tokens=12)]
    draft = make_draft(model.model, model.model, 3)
    drafting = BatchedEngine(model.model, model.eos_token_ids, 4, UNBOUNDED, draft=draft)
    drafting.step_costs.ratio = lambda _, width: float(width > 0)  # type: ignore[method-assign]
    answers = _answers(model, requests, drafting)
    assert answers["p"] == _answers(model, requests[:1])["p"]
    assert len(answers["free"].token_ids) == 12
