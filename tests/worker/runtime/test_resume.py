"""A request that goes on in another worker ends as it would have in the first."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.answers import (
    AnswerPart,
    Reasoning,
    Text,
    ToolCall,
    merged,
)
from protocol.message_base import pack
from protocol.requests import (
    ChatMessage,
    ChatPrompt,
    Generate,
    Sampling,
    TextPrompt,
    TokenPrompt,
    Tools,
)
from tests.support import shapes
from tests.support.answers import text_of
from tests.support.stepping import step
from worker.engines.batched_engine import BatchedEngine
from worker.engines.room import CacheRoom, CacheSizes, Context
from worker.engines.sequence import Engine
from worker.engines.sequential import SequentialEngine
from worker.load.files import fingerprint
from worker.load.loading import LoadedModel, load
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import PreparedRequest, prepare

PATHS = Paths(b"", None, needs_snapshots=False)
CONTEXT = Context(4096)
GREEDY = Sampling(seed=1, temperature=0.0)
SEEDED = Sampling(seed=7, temperature=1.2, top_p=0.95)
PENALIZED = Sampling(seed=1, temperature=0.0, repetition_penalty=1.4)
BUILDERS: dict[str, Callable[[Path], Path]] = {
    "full attention": lambda _: shapes.DEMO,
    "sliding window": shapes.sliding_window,
    "state space": shapes.state_space,
    "chunked attention": shapes.chunked_attention,
}


@dataclass
class Answer:
    """`pieces` are the parts that came with each token."""

    token_ids: list[int]
    pieces: list[list[AnswerPart]]
    finish_reason: str | None

    @property
    def parts(self) -> list[AnswerPart]:
        return merged([part for piece in self.pieces for part in piece])

    @property
    def text(self) -> str:
        return text_of(self.parts)


@pytest.fixture(scope="module", params=BUILDERS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = BUILDERS[request.param](tmp_path_factory.mktemp("models") / "model")
    return load(str(folder), lambda _done, _total: None, lambda: False)


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load(str(shapes.DEMO), lambda _done, _total: None, lambda: False)


def _engine(model: LoadedModel) -> Engine:
    from mlx_lm.models.cache import make_prompt_cache

    if all(hasattr(cache, "merge") for cache in make_prompt_cache(model.model)):
        return BatchedEngine(model.model, model.eos_token_ids, 8, CacheRoom(CacheSizes(0, 0, 1.0)))
    return SequentialEngine(model.model, model.eos_token_ids, CacheRoom(CacheSizes(0, 0, 1.0)))


def _prepare(model: LoadedModel, generate: Generate) -> PreparedRequest:
    prepared = prepare(generate, model, CONTEXT, PATHS)
    assert isinstance(prepared, PreparedRequest), prepared
    return prepared


def _run(model: LoadedModel, generate: Generate) -> tuple[PreparedRequest, Answer]:
    prepared = _prepare(model, generate)
    engine = _engine(model)
    engine.add(prepared.sequence)
    answer = Answer([], [], None)
    while answer.finish_reason is None:
        for token in step(engine):
            answer.token_ids.append(token.token_id)
            answer.finish_reason = token.finish_reason
            parts = [] if token.finish_reason == "stop" else prepared.answer.add(token.token_id)
            if prepared.answer.stopped:
                answer.finish_reason = "stop"
            if answer.finish_reason is not None:
                parts += prepared.answer.finish(complete=answer.finish_reason == "stop")
            answer.pieces.append(parts)
            if answer.finish_reason is not None:
                break
    return prepared, answer


def _resumed(generate: Generate, prompt_ids: list[int], delivered: list[int]) -> Generate:
    return Generate(
        request_id="again",
        prompt=TokenPrompt(pack(prompt_ids)),
        sampling=generate.sampling,
        max_tokens=generate.max_tokens,
        stop=generate.stop,
        ignore_eos=generate.ignore_eos,
        delivered=pack(delivered),
        parsed=generate.parsed,
        tools=generate.tools,
        reasoning_tokens=generate.reasoning_tokens,
    )


def _check(model: LoadedModel, generate: Generate, every: int = 1) -> Answer:
    """Break the answer after each token, or after some, and go on."""
    prepared, whole = _run(model, generate)
    assert len(whole.token_ids) > 1
    for cut in range(1, len(whole.token_ids), every):
        again, rest = _run(model, _resumed(generate, prepared.prompt_ids, whole.token_ids[:cut]))
        assert again.prompt_ids == prepared.prompt_ids
        assert not again.rendered
        assert whole.token_ids[:cut] + rest.token_ids == whole.token_ids, f"after {cut}"
        assert whole.pieces[:cut] + rest.pieces == whole.pieces, f"after {cut}"
        assert rest.finish_reason == whole.finish_reason
    return whole


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling", [GREEDY, SEEDED, PENALIZED], ids=["greedy", "seeded", "penalized"]
)
def test_at_every_token(model: LoadedModel, sampling: Sampling) -> None:
    # Longer than the window of those that have one.
    prompt = TextPrompt("Once there was a ship with seven holds and a captain. " * 3)
    _check(model, Generate("r", prompt, sampling, max_tokens=9, ignore_eos=True))


def test_a_whole_answer_of_a_chat(demo: LoadedModel) -> None:
    prompt = ChatPrompt((ChatMessage("user", "Hello"),))
    whole = _check(demo, Generate("r", prompt, GREEDY), every=11)
    assert whole.finish_reason == "stop"
    assert whole.text.startswith("Hello! I am the demo model")


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["Marigold left", "harbour on a", "the har"])
def test_a_stop_sequence_that_straddles_the_break(demo: LoadedModel, stop: str) -> None:
    prompt = ChatPrompt((ChatMessage("user", "Tell me a story."),))
    whole = _check(demo, Generate("r", prompt, GREEDY, max_tokens=60, stop=(stop,)))
    assert whole.finish_reason == "stop"
    assert stop not in whole.text
    assert "The freighter Marigold left the harbour on a grey".startswith(whole.text)


def test_a_character_that_straddles_the_break(demo: LoadedModel) -> None:
    """The tokens are given, as the demo model writes no such text by itself."""
    text = "Größe 船 ⚓ 👩‍🚀 end"
    token_ids = demo.tokenizer.encode(text, add_special_tokens=False)
    generate = Generate("r", TextPrompt("."), GREEDY, max_tokens=200)
    stream = _prepare(demo, generate).answer
    pieces = [stream.add(token_id) for token_id in token_ids]
    assert any(not piece for piece in pieces), "some tokens end within a character"
    for cut in range(1, len(token_ids)):
        resumed = _prepare(demo, _resumed(generate, [1], token_ids[:cut])).answer
        assert [resumed.add(token_id) for token_id in token_ids[cut:]] == pieces[cut:]


def test_delivered_tokens_count(demo: LoadedModel) -> None:
    generate = Generate("r", TokenPrompt(pack([5, 6])), GREEDY, max_tokens=10)
    prepared = _prepare(demo, _resumed(generate, [5, 6], [7, 8, 9]))
    assert prepared.sequence.max_tokens == 7
    assert prepared.sequence.token_ids == [5, 6, 7, 8, 9]
    assert (prepared.prompt_ids, prepared.delivered) == ([5, 6], 3)
    refused = prepare(_resumed(generate, [5, 6], list(range(10))), demo, CONTEXT, PATHS)
    assert "delivered already" in refused.message  # type: ignore[union-attr]


class TestFingerprint:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return shapes.sliding_window(tmp_path / "model")

    def test_stays_the_same(self, folder: Path) -> None:
        assert fingerprint(folder) == fingerprint(folder)

    def test_of_a_copy_by_links_is_the_same(self, folder: Path, tmp_path: Path) -> None:
        snapshot = tmp_path / "snapshot"
        snapshot.mkdir()
        for path in folder.iterdir():
            (snapshot / path.name).symlink_to(path)
        assert fingerprint(snapshot) == fingerprint(folder)

    @pytest.mark.parametrize(
        "name", ["config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"]
    )
    def test_changes_with_a_small_file(self, folder: Path, name: str) -> None:
        before = fingerprint(folder)
        path = folder / name
        status = path.stat()
        path.write_bytes(path.read_bytes() + b" ")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert fingerprint(folder) != before

    def test_changes_with_the_weights(self, folder: Path) -> None:
        before = fingerprint(folder)
        path = folder / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        assert fingerprint(folder) != before

    def test_changes_with_a_file_more(self, folder: Path) -> None:
        before = fingerprint(folder)
        (folder / "added_tokens.json").write_text("{}")
        assert fingerprint(folder) != before


def test_within_a_call(demo: LoadedModel) -> None:
    """The tokens are given, as the demo model writes no such text by itself."""
    text = 'So:\n<tool_call>\n{"name": "f", "arguments": {"a": "ö <b>"}}\n</tool_call>'
    text = f"<think>\nHm.\n</think>\n{text}"
    token_ids = demo.tokenizer.encode(text, add_special_tokens=False)
    tools = Tools(definitions='[{"type": "function", "function": {"name": "f"}}]')
    generate = Generate("r", TextPrompt("."), GREEDY, max_tokens=200, parsed=True, tools=tools)
    stream = _prepare(demo, generate).answer
    pieces = [stream.add(token_id) for token_id in token_ids]
    assert merged([part for piece in pieces for part in piece]) == [
        Reasoning("Hm."),
        Text("So:"),
        ToolCall(0, '{"a": "ö <b>"}', "f"),
    ]
    for cut in range(1, len(token_ids)):
        resumed = _prepare(demo, _resumed(generate, [1], token_ids[:cut])).answer
        assert [resumed.add(token_id) for token_id in token_ids[cut:]] == pieces[cut:]
        assert resumed.reasoning_tokens == stream.reasoning_tokens


@pytest.mark.slow
@pytest.mark.parametrize("reasoning_tokens", [None, 9, 0])
def test_within_reasoning_with_a_budget(demo: LoadedModel, reasoning_tokens: int | None) -> None:
    prompt = ChatPrompt((ChatMessage("user", "Hello /think"),))
    generate = Generate(
        "r",
        prompt,
        GREEDY,
        max_tokens=40,
        ignore_eos=True,
        parsed=True,
        reasoning_tokens=reasoning_tokens,
    )
    whole = _check(demo, generate, every=7)
    thoughts = [part.text for part in whole.parts if isinstance(part, Reasoning)]
    end = demo.tokenizer.convert_tokens_to_ids("</think>")
    assert whole.token_ids[0] == demo.tokenizer.convert_tokens_to_ids("<think>")
    if reasoning_tokens is None:
        assert whole.token_ids.index(end) > 10
    else:
        assert whole.token_ids.index(end) == 1 + reasoning_tokens
        assert bool(thoughts) == (reasoning_tokens > 0)
