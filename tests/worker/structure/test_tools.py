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

from protocol.messages import Generate, Sampling, TextPrompt, Tools
from protocol.parts import AnswerPart, Text, ToolCall, merged
from tests.worker.answer.recorded import RECORDED, Recorded
from worker.answer.formats import find_format
from worker.answer.stream import answer_stream
from worker.structure.compiled import Compiled
from worker.structure.matching import Stage
from worker.structure.requests import Constraints

MOST_TOKENS = 400
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Köln", 'a "b"', "{", "</tool_call>"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 14},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


def _definition(name: str, schema: Any = WEATHER, *, strict: bool = False) -> dict[str, Any]:
    function = {"name": name, "parameters": schema, "strict": strict}
    return {"type": "function", "function": function}


BOTH = json.dumps([_definition("weather"), _definition("get-it_2")])


@dataclass
class Model:
    recorded: Recorded
    tokenizer: Any
    constraints: Constraints

    def answer(self, tools: Tools, seed: int) -> tuple[str, list[AnswerPart], bool]:
        """Its text and parts, and whether it is whole."""
        chance = random.Random(seed)
        generate = Generate(
            request_id="r",
            prompt=TextPrompt(""),
            sampling=Sampling(seed=0),
            parsed=True,
            tools=tools,
        )
        prompt_ids = self._ids(f"<|im_start|>user\nHi<|im_end|>\n{self.recorded.opening}")
        constrained = self.constraints.of(generate, prompt_ids, [])
        assert constrained is not None
        matching = constrained.begin()
        format_ = find_format(self.tokenizer)
        stream = answer_stream(generate, prompt_ids, self.tokenizer, format_)
        parts: list[AnswerPart] = []
        if matching.stage is Stage.THINKING:
            assert format_.reasoning is not None
            for token_id in self._ids(format_.reasoning.end):
                matching.feed(token_id)
                parts += stream.add(token_id)
        assert matching.stage is not Stage.THINKING
        made: list[int] = []
        whole = False
        mask = allocate_token_bitmask(1, constrained.width)
        while not whole and len(made) < MOST_TOKENS:
            fill_next_token_bitmask(matching.matcher, mask)
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

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids


# One of each form.
FORMS = [
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
]


def _model(recorded: Recorded, folder: Path) -> Model:
    tokenizer = recorded.tokenizer(folder / "model")
    compiled = Compiled(tokenizer, len(tokenizer), tokenizer.eos_token_ids)
    return Model(recorded, tokenizer, Constraints(compiled, tokenizer, find_format(tokenizer)))


@pytest.fixture(scope="module", params=RECORDED, ids=lambda each: each.name)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return _model(request.param, tmp_path_factory.mktemp("models"))


def _calls(parts: list[AnswerPart]) -> list[ToolCall]:
    return [each for each in parts if isinstance(each, ToolCall)]


def test_a_call_that_must_be(model: Model) -> None:
    for seed in range(3):
        text, parts, whole = model.answer(Tools(definitions=BOTH, choice="required"), seed)
        calls = _calls(parts)
        if "{" not in text.split("weather")[-1].split("get-it_2")[-1]:
            # In this form arguments are no JSON, and the model's own.
            assert "weather" in text or "get-it_2" in text
            continue
        print(model.recorded.family, repr(text[:200]), parts, whole)
        assert not [each for each in parts if isinstance(each, Text)]
        assert calls
        for each in calls if whole else calls[:-1]:
            assert each.name in ("weather", "get-it_2")
            jsonschema.validate(json.loads(each.arguments), WEATHER)
