"""Calls that must be made, and arguments that must be as they are defined, in every family's form.

Tokens are chosen at random among those that the grammar allows, and read by the family's parser.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from msgspec.structs import replace

from protocol.answers import (
    AnswerPart,
    Text,
    ToolCall,
    merged,
)
from protocol.requests import Constraint, Generate, Sampling, TextPrompt, Tools
from tests.worker.text.recorded import RECORDED, Recorded
from worker.structure.constraints import Constraints, GrammarCache
from worker.structure.grammar import ConstraintError
from worker.structure.sampler import SequenceConstraint, Stage
from worker.text.families import find_format
from worker.text.stream import answer_stream

MOST_TOKENS = 250
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Köln", 'a "b"', "{", "</tool_call>", "<|im_end|>", "<think>"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 14},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


def _definition(name: str, schema: Any = WEATHER, *, strict: bool = False) -> dict[str, Any]:
    function = {"name": name, "parameters": schema, "strict": strict}
    return {"type": "function", "function": function}


BOTH = json.dumps([_definition("weather"), _definition("get-it_2")])


def _generate(tools: Tools) -> Generate:
    return Generate(
        request_id="r",
        prompt=TextPrompt(""),
        sampling=Sampling(seed=0),
        parsed=True,
        tools=tools,
    )


@dataclass
class Model:
    recorded: Recorded
    tokenizer: Any
    constraints: Constraints

    def answer(self, tools: Tools, seed: int) -> tuple[str, list[AnswerPart], bool]:
        """Its text and parts, and whether it is whole."""
        chance = random.Random(seed)
        constrained = self.constrained(tools)
        matching = constrained.make_matching()
        format_ = find_format(self.tokenizer)
        stream = answer_stream(_generate(tools), self.prompt_ids, self.tokenizer, format_)
        parts: list[AnswerPart] = []
        if matching.stage is Stage.THINKING:
            assert format_.reasoning is not None
            for token_id in self.ids(format_.reasoning.end):
                matching.feed(token_id)
                parts += stream.add(token_id)
        assert matching.stage is not Stage.THINKING
        made: list[int] = []
        whole = False
        mask = allocate_token_bitmask(1, constrained.tokenizer.vocab_size)
        while not whole and len(made) < MOST_TOKENS:
            fill_next_token_bitmask(matching.matcher, mask)
            if made:
                # The first one might begin reasoning.
                matching.amend(mask[0])
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
            token_id = chance.choice(np.flatnonzero(bits).tolist())
            matching.feed(token_id)
            assert not matching.error
            whole = token_id in self.tokenizer.eos_token_ids
            if not whole:
                made.append(token_id)
                parts += stream.add(token_id)
        parts += stream.finish(complete=whole)
        return self.tokenizer.decode(made), merged(parts), whole

    @property
    def prompt_ids(self) -> list[int]:
        return self.ids(f"<|im_start|>user\nHi<|im_end|>\n{self.recorded.opening}")

    def constrained(self, tools: Tools) -> SequenceConstraint:
        constrained = self.constraints.of(_generate(tools), self.prompt_ids, [])
        assert constrained is not None
        return constrained

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids


def _model(recorded: Recorded, folder: Path) -> Model:
    tokenizer = recorded.tokenizer(folder / "model")
    compiled = GrammarCache(tokenizer, len(tokenizer), tokenizer.eos_token_ids)
    return Model(recorded, tokenizer, Constraints(compiled, tokenizer, find_format(tokenizer)))


# Names are in these, arguments are no JSON.
BEGINNINGS = {
    "llama4": "<|python_start|>[{}(",
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="{}">',
    "seed_oss": "<seed:tool_call>\n<function={}>\n",
    "olmo3": "<function_calls>{}(",
    "qwen3_coder": "<tool_call>\n<function={}>\n",
    "glm47": "<tool_call>{}\n",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="{}">',
    "gemma4": "<|tool_call>call:{}{{",
    "function_gemma": "<start_function_call>call:{}{{",
    "pythonic": "<|tool_call_start|>[{}(",
    "longcat": "<longcat_tool_call>{}\n",
    "minicpm5": '<function name="{}">',
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="{}" index="1"<|sep|>',
}
# One of each form.
OF_JSON = (
    "qwen3",
    "qwen3 thinking, opened by the template",
    "mistral 7",
    "mistral with ids",
    "llama 3",
    "deepseek r1",
    "deepseek 3.1",
    "kimi k2",
    "gpt-oss",
    "command a",
    "granite 3",
    "phi 4",
    "nemotron",
    "internlm",
    "hunyuan a13b",
)


def _named(name: str) -> Recorded:
    return next(recorded for recorded in RECORDED if recorded.name == name)


@pytest.fixture(scope="module", params=OF_JSON)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return _model(_named(request.param), tmp_path_factory.mktemp("models"))


def _calls(parts: list[AnswerPart]) -> list[ToolCall]:
    return [part for part in parts if isinstance(part, ToolCall)]


def _check(parts: list[AnswerPart], names: tuple[str, ...], *, whole: bool) -> list[ToolCall]:
    if whole:
        assert not [part for part in parts if isinstance(part, Text)], parts
    calls = _calls(parts)
    for call in calls if whole else calls[:-1]:
        assert call.name in names
        jsonschema.validate(json.loads(call.arguments), WEATHER)
    return calls


def test_a_call_must_be(model: Model) -> None:
    found = []
    for seed in range(3):
        _, parts, whole = model.answer(Tools(definitions=BOTH, choice="required"), seed)
        found += _check(parts, ("weather", "get-it_2"), whole=whole)
    assert found


def test_a_call_of_the_given_name_is_required(model: Model) -> None:
    tools = Tools(definitions=BOTH, choice="required", name="get-it_2", parallel=False)
    found = []
    for seed in range(3):
        _, parts, whole = model.answer(tools, seed)
        calls = _check(parts, ("get-it_2",), whole=whole)
        assert len(calls) <= 1
        found += calls
    assert found


@pytest.mark.parametrize("family", BEGINNINGS)
def test_without_json_a_call_is_begun(family: str, tmp_path: Path) -> None:
    recorded = next(recorded for recorded in RECORDED if recorded.family == family)
    model = _model(recorded, tmp_path)
    for seed in range(2):
        text, _, _ = model.answer(Tools(definitions=BOTH, choice="required"), seed)
        beginnings = tuple(BEGINNINGS[family].format(text) for text in ("weather", "get-it_2"))
        assert text.startswith(beginnings)


# After some text; the arguments go into the braces.
ANSWERS = {
    "qwen3": 'Well.\n<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>',
    "mistral 7": 'Well.[TOOL_CALLS][{"name": "weather", "arguments": {}}]',
    "mistral with ids": "[TOOL_CALLS]weather[ARGS]{}",
    "deepseek 3.1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{}"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "command a": 'Well.<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "weather", '
    '"parameters": {}}]<|END_ACTION|>',
}


@pytest.mark.parametrize("name", ANSWERS)
def test_strict_arguments_of_a_call_that_may_be(name: str, tmp_path: Path) -> None:
    model = _model(_named(name), tmp_path)
    definitions = json.dumps([_definition("weather", strict=True)])
    for arguments, matches in [
        ('{"city": "Köln", "days": 3}', True),
        ('{"city": "Bonn", "days": 3}', False),
        ('{"city": "Köln", "days": 99}', False),
    ]:
        matcher = model.constrained(Tools(definitions=definitions)).compiled.deep_copy()
        token_ids = model.ids(ANSWERS[name].replace("{}", arguments, 1))
        taken = matcher.try_consume_tokens(token_ids)
        assert (taken == len(token_ids)) == matches
        assert matcher.is_accepting() == matches


def _first(constrained: SequenceConstraint) -> Any:
    """Which tokens it may begin with, as bits."""
    mask = allocate_token_bitmask(1, constrained.tokenizer.vocab_size)
    fill_next_token_bitmask(constrained.compiled.deep_copy(), mask)
    return mask


CITY = {"type": "object", "properties": {"a/b": {"enum": [1]}}, "required": ["a/b"]}
CONSTRAINTS = {
    Constraint("json_schema", json.dumps({**CITY, "additionalProperties": False})): '{"a/b": 1}',
    Constraint("json_object"): '{"x": []}',
    Constraint("regex", r"a/b\/c[\\]"): "a/b/c\\",
    Constraint("choice", '["yes", "no"]'): "no",
}


@pytest.mark.parametrize("name", ["qwen3", "mistral with ids", "gpt-oss", "hunyuan a13b"])
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda item: item.kind)
def test_a_call_or_an_answer_that_matches(
    name: str, constraint: Constraint, tmp_path: Path
) -> None:
    model = _model(_named(name), tmp_path)
    tools = Tools(definitions=BOTH)
    either = replace(_generate(tools), constraint=constraint)
    constrained = model.constraints.of(either, model.prompt_ids, [])
    assert constrained is not None
    begin = "<|channel|>final<|message|>" if name == "gpt-oss" else ""
    for text, matches in [(CONSTRAINTS[constraint], True), ("never", False)]:
        matcher = constrained.compiled.deep_copy()
        token_ids = model.ids(begin + text)
        taken = matcher.try_consume_tokens(token_ids)
        assert (taken == len(token_ids) and matcher.is_accepting()) == matches
    required = Tools(definitions=BOTH, choice="required")
    alone = replace(_generate(required), constraint=constraint)
    bound = model.constraints.of(alone, model.prompt_ids, [])
    assert bound is not None
    may, must = _first(constrained), _first(bound)
    assert must.any()
    assert not (must & ~may).any()
    refused = model.ids(begin + CONSTRAINTS[constraint])
    assert bound.compiled.deep_copy().try_consume_tokens(refused) < len(refused)


@pytest.mark.parametrize(
    ("name", "constraint", "named"),
    [
        ("qwen3", Constraint("grammar", 'start: "a"'), "beside tools"),
        ("llama 3", Constraint("json_object"), "without a tag"),
    ],
)
def test_constraints_that_are_refused_beside_tools(
    name: str, constraint: Constraint, named: str, tmp_path: Path
) -> None:
    model = _model(_named(name), tmp_path)
    both = replace(_generate(Tools(definitions=BOTH)), constraint=constraint)
    with pytest.raises(ConstraintError, match=named):
        model.constraints.of(both, model.prompt_ids, [])


def test_nothing_is_bound_without_strictness(tmp_path: Path) -> None:
    model = _model(RECORDED[0], tmp_path)
    for tools in (Tools(definitions=BOTH), Tools(definitions=BOTH, choice="none")):
        assert model.constraints.of(_generate(tools), [1], []) is None


def test_unenforced_keywords_are_named_without_strictness_too(tmp_path: Path) -> None:
    model = _model(RECORDED[0], tmp_path)
    schema = {"type": "object", "properties": {"a": {"type": "string", "not": {"const": "z"}}}}
    definitions = json.dumps([_definition("weather", schema)])
    asked = model.constrained(Tools(definitions=definitions, choice="required"))
    assert asked.unenforced == ("not",)


def test_schemas_that_cannot_be_done(tmp_path: Path) -> None:
    """Who asks for no strictness gets arguments of any kind, others a refusal."""
    model = _model(RECORDED[0], tmp_path)
    schema = {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema"}}}
    loose = json.dumps([_definition("weather", schema)])
    asked = model.constrained(Tools(definitions=loose, choice="required"))
    assert asked.unenforced == ("parameters of functions without strict",)
    strict = json.dumps([_definition("weather", schema, strict=True)])
    with pytest.raises(ConstraintError, match=r"example\.com"):
        model.constrained(Tools(definitions=strict))
    with pytest.raises(ConstraintError, match="no function"):
        model.constrained(Tools(definitions=BOTH, choice="required", name="other"))


@pytest.mark.parametrize("thinks", [True, False])
def test_answers_without_reasoning_are_bound_at_once(tmp_path: Path, *, thinks: bool) -> None:
    model = _model(_named("qwen3"), tmp_path)
    generate = replace(
        _generate(Tools(definitions=BOTH)),
        tools=None,
        constraint=Constraint("choice", '["yes"]'),
        thinks=thinks,
    )
    constrained = model.constraints.of(generate, model.prompt_ids, [])
    assert constrained is not None
    assert constrained.thinking is not None
    assert (constrained.thinking.begin is not None) == thinks
