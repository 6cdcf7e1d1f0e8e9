"""Texts that must come, and that the tokenizer takes for something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from mlx_lm.utils import load_tokenizer
from msgspec.structs import replace

from protocol.answers import (
    AnswerPart,
    Logprobs,
    Text,
    ToolCall,
    merged,
)
from protocol.message_base import pack
from protocol.requests import ChatMessage, ChatPrompt, Constraint, Generate, Sampling, Tools
from tests.support.shapes import DEMO
from tests.support.templates import templated
from tests.worker.text.recorded import RECORDED
from worker.engines.batched_engine import BatchedEngine
from worker.engines.room import CacheRoom, CacheSizes, Context
from worker.engines.sequence import Engine
from worker.engines.sequential import SequentialEngine
from worker.load.loading import LoadedModel
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import PreparedRequest, prepare
from worker.sampling.scores import LogprobWriter
from worker.structure.constraints import GrammarCache
from worker.structure.grammar import ConstraintError
from worker.structure.sampler import SequenceConstraint
from worker.text.families import find_format
from worker.text.stream import answer_stream

PATHS = Paths(b"", None, needs_snapshots=False)
UNBOUNDED = CacheRoom(CacheSizes(0, 0, 1.0))
TEXTS = (
    "<|im_end|>",
    "<|im_start|>",
    "<|endoftext|>",
    "<tool_call>",
    "</tool_call>",
    "<think>x</think>",
    "</think>",
    'a<|im_end|>b "<tool_call>" ö⚓',
)


def _object(value: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {"note": value},
        "required": ["note"],
        "additionalProperties": False,
    }


def _schema(schema: object) -> Constraint:
    return Constraint("json_schema", json.dumps(schema))


def _generate(constraint: Constraint | None, *, tools: Tools | None = None) -> Generate:
    return Generate(
        request_id="r",
        prompt=ChatPrompt((ChatMessage("user", "Say it."),)),
        sampling=Sampling(seed=1, temperature=1.0),
        max_tokens=200,
        parsed=True,
        constraint=constraint,
        tools=tools,
        logprobs=2,
        thinks=False,
    )


def _batched(model: LoadedModel) -> Engine:
    return BatchedEngine(model.model, model.eos_token_ids, 4, UNBOUNDED)


def _sequential(model: LoadedModel) -> Engine:
    return SequentialEngine(model.model, model.eos_token_ids, UNBOUNDED)


def _answer(
    model: LoadedModel, generate: Generate, engine: Engine | None = None
) -> tuple[list[AnswerPart], str, list[int]]:
    """Its parts, why it ended, and its tokens."""
    prepared = prepare(generate, model, Context(4096), PATHS)
    assert isinstance(prepared, PreparedRequest), prepared
    engine = engine or _batched(model)
    engine.add(prepared.sequence)
    logprobs = LogprobWriter(model.token_bytes, prepared.prompt_ids)
    parts: list[AnswerPart] = []
    ids: list[int] = []
    reason = ""
    while engine.active + engine.waiting:
        for token in engine.step():
            ids.append(token.token_id)
            reason = token.finish_reason or ""
            if reason != "stop":
                if token.score is not None:
                    parts.append(logprobs.part(token.token_id, token.score))
                parts += prepared.answer.add(token.token_id)
        assert engine.remove_broken() == []
    parts += prepared.answer.finish(complete=reason == "stop")
    engine.close()
    return parts, reason, ids


def _text_of(parts: list[AnswerPart]) -> str:
    others = [part for part in parts if not isinstance(part, Text | Logprobs)]
    assert not others
    return "".join(text.text for text in parts if isinstance(text, Text))


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "make",
    [
        lambda text: _schema({"enum": [text]}),
        lambda text: _schema(_object({"const": text})),
        lambda text: _schema(_object({"enum": [text, f"{text}!"]})),
        lambda text: Constraint("choice", json.dumps([text])),
        lambda text: Constraint("grammar", f"start: {json.dumps(text)}"),
    ],
    ids=["enum", "const", "enum of two", "choice", "literal"],
)
def test_such_a_text_is_written(
    make: Callable[[str], Constraint], text: str, model: LoadedModel
) -> None:
    constraint = make(text)
    parts, reason, _ = _answer(model, _generate(constraint))
    assert reason == "stop"
    written = _text_of(parts)
    if constraint.kind == "json_schema":
        assert text in json.dumps(json.loads(written), ensure_ascii=False).replace('\\"', '"')
    else:
        assert written == text
    scored = b"".join(
        token.text for part in parts if isinstance(part, Logprobs) for token in part.tokens
    )
    assert scored.decode() == written


@pytest.mark.parametrize("make", [_batched, _sequential])
def test_every_engine_writes_it_and_goes_on_after_every_token(
    make: Callable[[LoadedModel], Engine], model: LoadedModel
) -> None:
    generate = _generate(_schema(_object({"const": "a<|im_end|>b"})))
    parts, _, ids = _answer(model, generate, make(model))
    written = _text_of(parts)
    for cut in range(1, len(ids)):
        again = replace(generate, delivered=pack(ids[:cut]))
        rest, reason, _ = _answer(model, again, make(model))
        assert written.endswith(_text_of(rest))
        assert reason == "stop"


def test_reasoning_comes_first_and_is_split_off(model: LoadedModel) -> None:
    """Only the token of its tag begins it; the text of a tag is a text."""
    tokenizer, format_ = model.tokenizer, model.answer_format
    assert format_.reasoning is not None
    begin, end = (tokenizer.encode(text, add_special_tokens=False)[0] for text in format_.reasoning)
    text = "<think>x</think>"
    spelled = model.constraints._compiled.tokenizer.greedy_tokenize(text)
    inner = tokenizer.encode("Hm.", add_special_tokens=False)
    generate = _generate(Constraint("choice", json.dumps([text])))
    for ids, thought in [(spelled, ""), ([begin, *inner, end, *spelled], "Hm.")]:
        stream = answer_stream(generate, [1], tokenizer, format_)
        parts = merged([part for identifier in ids for part in stream.add(identifier)])
        parts += stream.finish(complete=True)
        kinds = {type(item).__name__: item.text for item in merged(parts)}  # type: ignore[union-attr]
        assert kinds.pop("Text") == text
        assert kinds == ({"Reasoning": thought} if thought else {})


@pytest.mark.parametrize("strict", [True, False])
def test_arguments_of_a_call(strict: bool, model: LoadedModel) -> None:
    schema = _object({"enum": list(TEXTS)})
    function = {"name": "note", "parameters": schema, "strict": strict}
    tools = Tools(
        definitions=json.dumps([{"type": "function", "function": function}]),
        choice="required",
        parallel=False,
    )
    parts, _, _ = _answer(model, _generate(None, tools=tools))
    call = next(tool_call for tool_call in merged(parts) if isinstance(tool_call, ToolCall))
    assert json.loads(call.arguments)["note"] in TEXTS


def test_an_answer_beside_tools(model: LoadedModel) -> None:
    """It may have the text of a call's tag."""
    function = {"name": "note", "parameters": {"type": "object"}}
    tools = Tools(definitions=json.dumps([{"type": "function", "function": function}]))
    constraint = _schema(_object({"const": "a <tool_call> b"}))
    text = '{"note": "a <tool_call> b"}'
    spelled = model.constraints._compiled.tokenizer.greedy_tokenize(text)
    stream = answer_stream(
        _generate(constraint, tools=tools), [1], model.tokenizer, model.answer_format
    )
    parts = [part for number in spelled for part in stream.add(number)]
    assert _text_of(parts + stream.finish(complete=True)) == text


def test_the_last_message_of_harmony(tmp_path: Path) -> None:
    recorded = next(recorded for recorded in RECORDED if recorded.family == "harmony")
    tokenizer = recorded.tokenizer(tmp_path / "model")
    text = "a<|end|>b<|start|>c"
    spelled = GrammarCache(tokenizer, len(tokenizer), tokenizer.eos_token_ids).tokenizer
    ids = [
        *tokenizer.encode("<|channel|>final<|message|>", add_special_tokens=False),
        *spelled.greedy_tokenize(text),
    ]
    prompt_ids = tokenizer.encode("<|start|>assistant", add_special_tokens=False)
    generate = _generate(Constraint("choice", json.dumps([text])))
    stream = answer_stream(generate, prompt_ids, tokenizer, find_format(tokenizer))
    parts = [part for identifier in ids for part in stream.add(identifier)]
    assert _text_of(parts + stream.finish(complete=True)) == text


def _tokenizer(folder: Path, **changes: object) -> Any:
    """The demo model's, with other parts."""
    templated(folder, "{{ messages }}")
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return load_tokenizer(folder)


def _writes(tokenizer: Any, constraint: Constraint) -> str:
    compiled = GrammarCache(tokenizer, len(tokenizer), tokenizer.eos_token_ids)
    matching = SequenceConstraint(compiled.find(constraint), compiled.tokenizer).make_matching()
    mask = allocate_token_bitmask(1, len(tokenizer))
    made: list[int] = []
    while not matching.matcher.is_stopped():
        fill_next_token_bitmask(matching.matcher, mask)
        matching.amend(mask[0])
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        made.append(int(np.flatnonzero(bits)[0]))
        matching.feed(made[-1])
        assert not matching.error
    return str(tokenizer.decode(made, skip_special_tokens=True))


def test_a_text_that_the_tokenizer_normalizes(tmp_path: Path) -> None:
    """Qwen's makes one letter of an "e" and its accent."""
    tokenizer = _tokenizer(tmp_path / "model", normalizer={"type": "NFC"})
    text = "a e\u0301 u\u0308 b"
    assert _writes(tokenizer, Constraint("choice", json.dumps([text]))) == text


def test_a_text_that_the_model_has_no_tokens_for(tmp_path: Path) -> None:
    model = json.loads((DEMO / "tokenizer.json").read_text())["model"]
    lacking = {text: index for text, index in model["vocab"].items() if "Å" not in text}
    model["vocab"] = {text: index for index, text in enumerate(lacking)}
    model["merges"] = [
        merge
        for merge in model["merges"]
        if all(part in lacking for part in [*merge, "".join(merge)])
    ]
    tokenizer = _tokenizer(tmp_path / "model", model=model)
    with pytest.raises(ConstraintError, match="can't be written in this model's tokens"):
        _writes(tokenizer, Constraint("choice", '["a\\u0159"]'))
