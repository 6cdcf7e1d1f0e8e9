"""What a constraint allows, what is refused and why, and what is kept."""

from __future__ import annotations

import json
import re

import pytest

from protocol.answers import RequestFailed
from protocol.requests import Constraint, Generate, Sampling, TextPrompt
from tests.worker.structure.hostile import HOSTILE
from worker.engines.batched_engine import BatchedEngine
from worker.engines.room import CacheRoom, CacheSizes, Context
from worker.load.loading import LoadedModel
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import PreparedRequest, prepare
from worker.structure.constraints import GrammarCache
from worker.structure.grammar import ConstraintError

PATHS = Paths(b"", None, needs_snapshots=False)
OBJECT = Constraint("json_object")
CLOSED = Constraint(
    "json_schema",
    '{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false}',
)
CHOICE = Constraint("choice", json.dumps(["left", 'a "b"', "two\nlines", "⚓", "left"]))


def _whole(schema: str) -> Constraint:
    return Constraint("json_schema", schema, whole=True)


SUM = Constraint("grammar", 'start: N ("+" N)*\nN: /[0-9]+/')


@pytest.mark.parametrize(
    ("constraint", "text", "matches"),
    [
        (OBJECT, "{}", True),
        (OBJECT, '{"a": [1, {"b": null}], "c": "ö"}', True),
        (OBJECT, '{\n  "a": 1\n}', True),
        (OBJECT, "[]", False),
        (OBJECT, '{"a": }', False),
        (CLOSED, '{"a":-5}', True),
        (CLOSED, '{"a":"5"}', False),
        (CLOSED, '{"b":5}', False),
        (CHOICE, 'a "b"', True),
        (CHOICE, "two\nlines", True),
        (CHOICE, "⚓", True),
        (CHOICE, "leftmost", False),
        (Constraint("regex", "^[ab]{2}$"), "ab", True),
        (Constraint("regex", "[ab]{2}"), "abb", False),
        (SUM, "1+22+3", True),
        (SUM, "1+", False),
    ],
)
def test_matching_answers(
    constraint: Constraint, text: str, matches: bool, model: LoadedModel
) -> None:
    matcher = model.constraints._compiled.find(constraint).deep_copy()
    token_ids = model.tokenizer.encode(text, add_special_tokens=False)
    taken = matcher.try_consume_tokens(token_ids)
    assert (taken == len(token_ids) and matcher.is_accepting()) == matches


def _prepare(model: LoadedModel, constraint: Constraint) -> PreparedRequest | RequestFailed:
    generate = Generate(
        request_id="r",
        prompt=TextPrompt("Hello"),
        sampling=Sampling(seed=1, temperature=1.0),
        max_tokens=24,
        constraint=constraint,
    )
    return prepare(generate, model, Context(4096), PATHS)


@pytest.mark.parametrize(
    ("constraint", "named"),
    [
        (
            Constraint("json_schema", '{"not":{"type":"string"}}', whole=True),
            'json_schema: .*"not"',
        ),
        (
            Constraint(
                "json_schema", '{"type":"object","unevaluatedProperties":false}', whole=True
            ),
            "unevalu",
        ),
        (
            Constraint("json_schema", '{"x-guidance":{"lenient":true},"not":{}}', whole=True),
            '"not"',
        ),
        (
            Constraint("json_schema", '{"type":"string","format":"colour"}', whole=True),
            "format: colour",
        ),
        (Constraint("json_schema", '{"$ref":"https://example.com/schema"}'), "example.com"),
        (Constraint("json_schema", '{"type":"strng"}'), "strng"),
        (Constraint("json_schema", "{"), "can't be read"),
        (Constraint("json_schema", "[]"), "can't be read"),
        (Constraint("json_schema", '{"enum":[]}'), "Unsatisfiable"),
        (Constraint("regex", "a(?=b)"), "regex: look-around"),
        (Constraint("regex", r"(a)\1"), "backreferences"),
        (Constraint("regex", "(" * 900 + "a" * 900), "unclosed group"),
        (Constraint("grammar", "start: nothing"), "grammar: .*nothing"),
        (Constraint("grammar", 'start: "a" <|assistant|>'), "special token: .<.assistant.>"),
        (Constraint("choice", "[]"), "one at least"),
        (Constraint("choice", '["a", 1]'), "list of texts"),
        (Constraint("regex", "a" * 300_000), "300000 characters"),
    ],
)
def test_refusals_name_their_reason(constraint: Constraint, named: str, model: LoadedModel) -> None:
    refused = _prepare(model, constraint)
    assert isinstance(refused, RequestFailed)
    assert (refused.code, refused.field) == ("invalid_request_error", "constraint")
    assert re.search(named, refused.message), refused.message


ONE_OF = '{"oneOf":[{"type":"string"},{"minLength":1}]}'


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ('{"type":"string","not":{"const":"a"},"format":"regex"}', {"not", "format regex"}),
        ('{"type":"object","dependencies":{"a":["b"]}}', {"dependencies"}),
        ('{"x-guidance":{"lenient":false},"type":"array","uniqueItems":true}', {"uniqueItems"}),
        ('{"properties":{"a":{}},"minProperties":2}', {"minProperties", "maxProperties"}),
        (ONE_OF, {"oneOf (taken as anyOf)"}),
        ('{"oneOf":[{"type":"string"},{"type":"null"}]}', set()),
        ('{"type":"object","properties":{"a":{"format":"date"}}}', set()),
    ],
)
def test_unenforced_keywords_are_named(schema: str, named: set[str], model: LoadedModel) -> None:
    prepared = _prepare(model, Constraint("json_schema", schema))
    assert isinstance(prepared, PreparedRequest)
    assert prepared.sequence.constrained is not None
    assert set(prepared.sequence.constrained.unenforced) == named


def test_a_refusal_advises_what_a_client_can_do(model: LoadedModel) -> None:
    refused = _prepare(model, Constraint("json_schema", ONE_OF, whole=True))
    assert isinstance(refused, RequestFailed)
    assert "coerce_one_of" not in refused.message
    assert "Send anyOf" in refused.message


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_ones_are_refused_or_run(name: str, model: LoadedModel) -> None:
    prepared = _prepare(model, HOSTILE[name])
    if isinstance(prepared, RequestFailed):
        assert prepared.field == "constraint"
        assert len(prepared.message) < 1000
        return
    engine = BatchedEngine(model.model, model.eos_token_ids, 2, CacheRoom(CacheSizes(0, 0, 1.0)))
    engine.add(prepared.sequence)
    ended = 0
    while engine.active + engine.waiting:
        ended += sum(token.finish_reason is not None for token in engine.step())
        ended += len(engine.remove_broken())
    engine.close()
    assert ended == 1


def test_a_model_without_a_fast_tokenizer_refuses(model: LoadedModel) -> None:
    class Slow:
        def __len__(self) -> int:
            return 10

        _tokenizer = object()

    compiled = GrammarCache(Slow(), 10, [2])
    with pytest.raises(ConstraintError, match="tokenizer can't be used"):
        compiled.find(OBJECT)


def test_cached_grammars_are_bounded_in_bytes(model: LoadedModel) -> None:
    """Large ones count for more than small ones."""

    def compiled(most_bytes: int) -> GrammarCache:
        return GrammarCache(
            model.tokenizer, model.vocabulary, model.eos_token_ids, most_bytes=most_bytes
        )

    def large(number: int) -> Constraint:
        names = [f"{number}-{index}" for index in range(120)]
        parts = {name: {"type": "string", "pattern": f"^[a-z]*{name}$"} for name in names}
        return Constraint("json_schema", json.dumps({"properties": parts, "required": names}))

    unbounded = compiled(1 << 40)
    unbounded.find(OBJECT)
    small_bytes = unbounded.bytes_
    unbounded.find(large(0))
    large_bytes = unbounded.bytes_ - small_bytes
    assert small_bytes > 0
    # The text alone would be next to nothing of it.
    assert large_bytes > 10 * len(large(0).source)
    most_bytes = small_bytes + int(2.5 * large_bytes)
    bounded = compiled(most_bytes)
    for number in range(4):
        bounded.find(large(number))
        bounded.find(OBJECT)
        assert bounded.bytes_ <= most_bytes
    assert large(0) not in bounded
    assert OBJECT in bounded, "it was used again and again"
    assert large(3) in bounded
    nothing = compiled(1)
    assert not nothing.find(OBJECT).deep_copy().is_error(), "it can be used all the same"
    with pytest.raises(ConstraintError):
        nothing.find(Constraint("regex", "("))
    assert nothing.bytes_ == 0


def test_the_last_grammars_stay(model: LoadedModel) -> None:
    compiled = GrammarCache(model.tokenizer, model.vocabulary, model.eos_token_ids, most_grammars=2)
    first = compiled.find(OBJECT)
    bad = Constraint("regex", "(")
    with pytest.raises(ConstraintError) as refused:
        compiled.find(bad)
    with pytest.raises(ConstraintError) as again:
        compiled.find(bad)
    assert again.value.reason == refused.value.reason
    assert compiled.find(OBJECT) is first
    compiled.find(CHOICE)
    assert compiled.find(OBJECT) is first
    assert bad not in compiled
