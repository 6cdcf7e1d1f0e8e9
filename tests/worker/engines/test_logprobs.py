"""Log probabilities are the model's own, whoever shares the batch, of answers and of prompts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from protocol.answers import (
    AnswerPart,
    Delta,
    Logprobs,
    Output,
    PromptLogprobs,
    PromptToken,
    RequestFailed,
    TokenLogprob,
    merged,
)
from protocol.message_base import pack
from protocol.messages import MAX_WORKER_FRAME_BYTES, encode
from protocol.requests import Generate, Sampling, TokenPrompt
from tests.support import shapes
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, CacheSizes, Context
from worker.engines.row_computer import make_draft
from worker.engines.sequence import Engine, Sequence, Token
from worker.engines.sequential import SequentialEngine
from worker.load.loading import LoadedModel, load
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import PreparedRequest, prepare
from worker.sampling import scores as prompt_scores
from worker.sampling.scores import LogprobWriter, Score, Scores, scored_chunk
from worker.sampling.settings import RowSampling

UNBOUNDED = CacheRoom(CacheSizes(0, 0, 1.0))
BUILDERS: dict[str, Callable[[Path], Path]] = {
    "full attention": lambda _: shapes.DEMO,
    "sliding window": shapes.sliding_window,
    "state space": shapes.state_space,
    "chunked attention": shapes.chunked_attention,
}
SEQUENCES = [
    Sequence("plain", [5 + index for index in range(50)], 9, None, ignore_eos=True),
    Sequence("greedy", [7, 8, 9], 9, None, ignore_eos=True, logprobs=3),
    Sequence("none", [100], 9, None, ignore_eos=True, logprobs=0, prompt_logprobs=1),
    Sequence(
        "sampled",
        [11 + 3 * index for index in range(70)],
        9,
        RowSampling(3, 1.5, top_k=40),
        ignore_eos=True,
        logprobs=20,
        prompt_logprobs=2,
    ),
    Sequence(
        "prompt", [600 - index for index in range(33)], 9, None, ignore_eos=True, prompt_logprobs=0
    ),
]


@pytest.fixture(scope="module", params=BUILDERS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = BUILDERS[request.param](tmp_path_factory.mktemp("models") / "model")
    return load(str(folder), lambda _done, _total: None, lambda: False)


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load(str(shapes.DEMO), lambda _done, _total: None, lambda: False)


def _engine(model: LoadedModel, working_bytes: int = 0) -> Engine:
    room = CacheRoom(CacheSizes(0, 0, 1.0), working_bytes=working_bytes)
    if Caches(model.model).can_be_merged:
        return BatchedEngine(model.model, model.eos_token_ids, 8, room)
    return SequentialEngine(model.model, model.eos_token_ids, room)


def _run(engine: Engine, sequences: list[Sequence]) -> dict[str, list[Token]]:
    for sequence in sequences:
        engine.add(sequence)
    made: dict[str, list[Token]] = {values.request_id: [] for values in sequences}
    while engine.active + engine.waiting:
        for token in engine.step():
            made[token.request_id].append(token)
    return made


def _logprobs(model: LoadedModel, token_ids: list[int]) -> list[list[float]]:
    """Of each place of a sequence, in one pass and by nothing that is tested here."""
    logits = model.model(mx.array([token_ids])).astype(mx.float32)[0]
    exact: list[list[float]] = mx.log(mx.softmax(logits, axis=-1)).tolist()  # type: ignore[assignment]
    return exact


def _check(score: Score | None, exact: list[float], token_id: int, alternatives: int) -> None:
    assert score is not None
    assert score.logprob == pytest.approx(exact[token_id], abs=1e-3)
    best = sorted(exact, reverse=True)[:alternatives]
    assert [value for _, value in score.top] == pytest.approx(best, abs=1e-3)
    assert [exact[index] for index, _ in score.top] == pytest.approx(best, abs=1e-3)


def test_they_are_what_the_model_gave(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks so short that each prompt has several, and rows of all kinds side by side."""
    monkeypatch.setattr(prompt_scores, "_LEAST_BYTES", 0)
    for sequences in (SEQUENCES, [SEQUENCES[3]]):
        # A chunk of one token for each row of all, or of four for one alone.
        made = _run(_engine(model, working_bytes=90_000), sequences)
        for sequence in sequences:
            tokens = made[sequence.request_id]
            ids = [token.token_id for token in tokens]
            assert len(ids) == 9
            exact = _logprobs(model, sequence.token_ids + ids)
            begin = len(sequence.token_ids) - 1
            for place, token in enumerate(tokens):
                if sequence.logprobs is None:
                    assert token.score is None
                    continue
                _check(token.score, exact[begin + place], ids[place], sequence.logprobs)
            assert all(token.prompt_scores is None for token in tokens[1:])
            if sequence.prompt_logprobs is None:
                assert tokens[0].prompt_scores is None
                continue
            following = sequence.token_ids[1:]
            assert tokens[0].prompt_scores is not None
            for place, (score, token_id) in enumerate(
                zip(tokens[0].prompt_scores, following, strict=True)
            ):
                _check(score, exact[place], token_id, sequence.prompt_logprobs)


def test_of_a_sequence_that_goes_on_elsewhere(model: LoadedModel) -> None:
    sampled = SEQUENCES[3]
    whole = _run(_engine(model), [sampled])["sampled"]
    rest = sampled.rest([token.token_id for token in whole[:4]])
    again = _run(_engine(model), [rest])["sampled"]
    assert [token.token_id for token in again] == [token.token_id for token in whole[4:]]
    for one, other in zip(again, whole[4:], strict=True):
        assert one.score is not None
        assert other.score is not None
        assert one.score.logprob == pytest.approx(other.score.logprob, abs=1e-3)
        assert one.prompt_scores is None
    # Put aside before its first token it has them still.
    assert sampled.rest([]).prompt_logprobs == sampled.prompt_logprobs


def test_they_are_those_before_the_sampling(demo: LoadedModel) -> None:
    """Neither temperature nor filters change them."""
    plain = replace(SEQUENCES[1], max_tokens=1)
    hot = replace(plain, sampling=RowSampling(1, 2.0, top_k=2, min_p=0.5))
    scores = [_run(_engine(demo), [values])["greedy"][0].score for values in (plain, hot)]
    assert scores[0] is not None
    assert scores[1] is not None
    assert scores[0].top == scores[1].top


def test_with_a_draft_model(demo: LoadedModel) -> None:
    """The model checks several tokens together: each has its own."""
    draft = make_draft(demo.model, demo.model, 3)
    engine = BatchedEngine(demo.model, (), 4, UNBOUNDED, draft=draft)
    engine.step_costs.ratio = lambda _, width: float(width > 0)  # type: ignore[method-assign]
    sequences = [replace(SEQUENCES[1], max_tokens=12), replace(SEQUENCES[3], max_tokens=12)]
    made = _run(engine, sequences)
    for sequence in sequences:
        tokens = made[sequence.request_id]
        exact = _logprobs(demo, sequence.token_ids + [token.token_id for token in tokens])
        for place, token in enumerate(tokens, len(sequence.token_ids) - 1):
            _check(token.score, exact[place], token.token_id, sequence.logprobs or 0)
    assert len(made["sampled"][0].prompt_scores or ()) == 69


@pytest.mark.parametrize("vocabulary", [5, 97, 704, 8192])
def test_the_likeliest(vocabulary: int) -> None:
    """In a row of blocks and in one of none; with ties, by their ids."""
    logits = mx.round(mx.random.normal((3, vocabulary), key=mx.random.key(5)) * 3)
    scores = Scores(logits, mx.array([0, 1, 2]), [0, 4, 20]).read()
    assert [len(score.top) for score in scores] == [0, 4, min(20, vocabulary)]
    for row, score in enumerate(scores):
        exact = (logits[row] - mx.logsumexp(logits[row])).tolist()
        best = sorted(exact, reverse=True)[: len(score.top)]  # type: ignore[type-var,arg-type]
        assert [value for _, value in score.top] == pytest.approx(best, abs=1e-5)
        assert score.logprob == pytest.approx(exact[row], abs=1e-5)  # type: ignore[index]
        assert list(score.top) == sorted(score.top, key=lambda pair: (-pair[1], pair[0]))
    (alone,) = Scores(logits[1:2], mx.array([1]), [4]).read()
    assert alone == scores[1]


def test_a_chunk_that_is_looked_at() -> None:
    assert scored_chunk(1, 151_936, 0) == 16
    assert scored_chunk(8, 151_936, 400_000_000) == 16
    assert scored_chunk(8, 262_144, 1) == 1
    assert scored_chunk(64, 262_144, 0) == 1
    assert scored_chunk(8, 262_144, 1 << 40) == 512, "no array has more than 2^31 - 1 elements"


def _writer(model: LoadedModel, prompt_ids: list[int]) -> LogprobWriter:
    return LogprobWriter(model.token_bytes, prompt_ids)


def test_scores_are_written_with_the_bytes_of_tokens(demo: LoadedModel) -> None:
    ids = demo.tokenizer.encode("船 a", add_special_tokens=False)
    writer = _writer(demo, ids)
    written = b""
    for token_id in ids:
        score = Score(-0.5, ((token_id, -0.5), (ids[0], -math.inf)))
        part = writer.part(token_id, score)
        assert isinstance(part, Logprobs)
        (token,) = part.tokens
        assert isinstance(token, TokenLogprob)
        assert token.logprob == -0.5
        assert token.top[0].text == token.text
        assert token.top[1].logprob == -9999.0
        written += token.text
    assert written.decode() == "船 a"
    part = writer.part(5, Score(math.nan))
    assert part == Logprobs((TokenLogprob(b"#", -9999.0),))


def test_those_of_a_long_prompt_come_in_several_parts(demo: LoadedModel) -> None:
    ids = [5 + index % 600 for index in range(5000)]
    top = tuple((number, -1.0) for number in range(20))
    scores = [Score(-index / 8, top) for index in range(1, 5000)]
    parts: list[AnswerPart] = list(_writer(demo, ids).prompt_parts(scores))
    assert len(parts) > 20
    for part in parts:
        assert (
            len(encode(Output(step=1, deltas=(Delta("r", (), (part,)),))))
            < MAX_WORKER_FRAME_BYTES / 4
        )
    (whole,) = merged(parts)
    assert isinstance(whole, PromptLogprobs)
    assert whole.begin == 0
    assert whole.tokens[0] == PromptToken(demo.token_bytes(5), None)
    assert [token.logprob for token in whole.tokens[1:]] == [-index / 8 for index in range(1, 5000)]
    assert [prompt_token.text for prompt_token in whole.tokens] == [
        demo.token_bytes(identifier) for identifier in ids
    ]
    # Another worker begins anew: nothing is taken for its continuation.
    assert merged([parts[0], parts[0]]) == [parts[0], parts[0]]
    assert list(_writer(demo, [5]).prompt_parts([])) == [
        PromptLogprobs(0, (PromptToken(demo.token_bytes(5), None),))
    ]


def _prepare(
    model: LoadedModel, tokens: int, alternatives: int, delivered: tuple[int, ...] = ()
) -> PreparedRequest | RequestFailed:
    generate = Generate(
        request_id="r",
        prompt=TokenPrompt(pack([5] * tokens)),
        sampling=Sampling(seed=1),
        max_tokens=4,
        delivered=pack(list(delivered)),
        prompt_logprobs=alternatives,
    )
    paths = Paths(b"", None, needs_snapshots=False)
    return prepare(generate, model, Context(400_000), paths)


def test_prompts_whose_tokens_are_scored(demo: LoadedModel) -> None:
    prepared = _prepare(demo, 200, 5)
    assert isinstance(prepared, PreparedRequest)
    assert (prepared.sequence.path, prepared.sequence.prompt_logprobs) == (None, 5)
    resumed = _prepare(demo, 200, 5, delivered=(7,))
    assert isinstance(resumed, PreparedRequest)
    assert resumed.sequence.path is not None
    assert resumed.sequence.prompt_logprobs is None
    refused = _prepare(demo, 20_000, 20)
    assert isinstance(refused, RequestFailed)
    assert refused.field == "prompt_logprobs"
    assert "at most 12483" in refused.message
