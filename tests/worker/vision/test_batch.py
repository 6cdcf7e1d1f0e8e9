"""Rows with pictures beside rows of text: each gets the tokens that it gets alone."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from protocol.requests import ChatMessage, Generate, Sampling
from tests.support.pictures import BLACK, GREEN, RED, png
from tests.worker.vision.serving import GREEDY, Serving, ask, user
from worker.engines.batched_engine import BatchedEngine
from worker.engines.pace import PrefillPace
from worker.load.loading import LoadedModel, load

pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")

SEEDED = Sampling(seed=7, temperature=1.1, top_p=0.95)
LONG = "What is to be seen here? " * 20
SIZES = ((100, 80), (120, 60), (60, 112), (90, 90))


@pytest.fixture(scope="module", params=["qwen2_vl", "gemma3", "qwen3_5"])
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> LoadedModel:
    from tests.support.picture_model import picture_model

    folder = picture_model(tmp_path_factory.mktemp("models") / "pictures", request.param)
    return load(str(folder), lambda _done, _total: None, lambda: False, pictures=True)


@pytest.fixture
def looks(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shape of the pixels, each time that the model looks at pictures."""
    part = model.model._model.vision_tower.part
    seen: list[Any] = []
    compute = type(part).__call__

    def look(self: Any, pixels: mx.array, *arguments: Any, **options: Any) -> Any:
        seen.append(pixels.shape)
        return compute(self, pixels, *arguments, **options)

    monkeypatch.setattr(type(part), "__call__", look)
    return seen


def _asked(sampling: Sampling, number: int = 10) -> list[Generate]:
    """Texts of several lengths, and prompts with up to two pictures of several sizes."""
    chance = random.Random(3)
    colours = [RED, GREEN, BLACK]
    found = []
    for index in range(number):
        pictures = [png(chance.choice(colours), *chance.choice(SIZES)) for _ in range(index % 3)]
        message = user("See: " + "word " * chance.randrange(1, 90), *pictures)
        tokens = chance.randrange(5, 30)
        found.append(ask(str(index), message, tokens=tokens, sampling=sampling))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("cached", [False, True], ids=["", "cached"])
def test_rows_of_both_kinds_join_leave_and_are_put_aside(
    model: LoadedModel, sampling: Sampling, cached: bool
) -> None:
    asked = _asked(sampling)
    alone = Serving(model, batched=False)
    expected = {request.request_id: alone.answer(request) for request in asked}
    serving = Serving(model, cached=cached)
    engine = serving.engine
    assert isinstance(engine, BatchedEngine)
    made: dict[str, list[int]] = {request.request_id: [] for request in asked}
    coming = [serving.sequence(request) for request in asked]
    # A recurrent state that is computed anew is rounded differently, which may decide a draw.
    puts_aside = sampling is GREEDY or model.config["model_type"] != "qwen3_5"
    steps = rows = 0
    while coming or engine.active + engine.waiting:
        if coming and steps % 3 == 0:
            engine.add(coming.pop(0))
        for token in engine.step():
            made[token.request_id].append(token.token_id)
        engine.store_blocks()
        rows = max(rows, engine.active)
        steps += 1
        if puts_aside and steps % 12 == 0 and any(len(row_batch) for row_batch in engine._batches):
            batch = next(batch for batch in engine._batches if len(batch))
            engine._add_first(batch.put_aside(batch.next_to_put_aside()[0]))
    assert made == expected
    assert rows >= 4


@pytest.mark.slow
def test_texts_are_computed_together(model: LoadedModel) -> None:
    """A step has a token of each row."""
    asked = [ask(str(index), user(f"Say {index}"), tokens=20) for index in range(6)]
    serving = Serving(model)
    made = serving.run_all(asked)
    for request in asked:
        assert [token.token_id for token in made[request.request_id]] == Serving(model).answer(
            request
        )


@pytest.mark.slow
@pytest.mark.parametrize("every", [0, 1])
def test_texts_of_unlike_length_in_several_chunks(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(PrefillPace, "chunk", lambda *_, **__: 64)
    asked = [ask(str(index), user("abc " * index), tokens=6) for index in (20, 45, 60, 31)]
    made = Serving(model).run_all(asked, every=every)
    alone = Serving(model, batched=False)
    for request in asked:
        assert [token.token_id for token in made[request.request_id]] == alone.answer(request)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_guesses_change_nothing(model: LoadedModel, sampling: Sampling) -> None:
    """The client predicts an answer that is right but for some tokens."""
    plain = _asked(sampling, 6)
    without = Serving(model, guesses=False).run_all(plain, every=2)
    answers = {
        name: str(model.tokenizer.decode([token.token_id for token in made]))
        for name, made in without.items()
    }
    asked = [
        replace_prediction(
            request, answers[request.request_id][:40] + "!" + answers[request.request_id]
        )
        for request in plain
    ]
    guessing = Serving(model)
    costs = guessing.engine.step_costs
    assert costs is not None
    costs.rehearsed = 4
    found = guessing.run_all(asked, every=2)
    assert {name: [token.token_id for token in made] for name, made in found.items()} == {
        name: [token.token_id for token in made] for name, made in without.items()
    }
    assert any(token.guessed or token.rejected for made in found.values() for token in made)


def replace_prediction(generate: Generate, prediction: str) -> Generate:
    import msgspec

    return msgspec.structs.replace(generate, prediction=prediction)


def test_log_probabilities(model: LoadedModel) -> None:
    """Those of the answer and of the prompt are those of one request alone."""
    asked = [
        ask(
            str(index),
            user(f"{index} who is that?", *files),
            tokens=4,
            logprobs=2,
            prompt_logprobs=1,
        )
        for index, files in enumerate([(), (png(RED),), (png(GREEN, 120, 60), png(BLACK))])
    ]
    together = Serving(model).run_all(asked)
    for request in asked:
        alone = Serving(model, batched=False).run_all([request])[request.request_id]
        found = together[request.request_id]
        for one, other in zip(found, alone, strict=True):
            assert one.score is not None
            assert other.score is not None
            assert one.score.logprob == pytest.approx(other.score.logprob, abs=1e-4)
        pairs = zip(found[0].prompt_scores or (), alone[0].prompt_scores or (), strict=True)
        pairs = list(pairs)
        assert len(pairs) > 5
        for one, other in pairs:
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


class _Conversation:
    """The turns of a conversation, each answered with the prompt cache and without."""

    def __init__(self, model: LoadedModel) -> None:
        self.cached, self._fresh = Serving(model, cached=True), Serving(model, batched=False)
        self._model = model
        self.messages: list[ChatMessage] = []

    def say(self, *messages: ChatMessage) -> int:
        """Returns how many tokens of the prompt were cached."""
        self.messages += messages
        generate = ask("r", *self.messages, tokens=12)
        made, cached = self.cached.run(generate)
        assert made == self._fresh.answer(generate)
        text = str(self._model.tokenizer.decode(made, skip_special_tokens=True))
        self.messages.append(ChatMessage("assistant", text))
        return cached

    def prompt(self) -> int:
        generate = ask("r", *self.messages, tokens=12)
        return len(self.cached.prepare(generate).prompt_ids)


def test_a_picture_is_seen_once(model: LoadedModel, looks: list[Any]) -> None:
    talk = _Conversation(model)
    assert talk.say(user("See " + LONG, png(RED))) == 0
    seen = talk.prompt()
    # One of the two looks is that of the engine without a cache, which looks each time.
    assert len(looks) == 2
    assert talk.say(user("And now? " + LONG)) >= seen - 128
    assert len(looks) == 3


def test_a_second_picture_is_looked_at_alone(model: LoadedModel, looks: list[Any]) -> None:
    talk = _Conversation(model)
    talk.say(user("See " + LONG, png(RED)))
    seen = talk.prompt()
    first, _ = looks
    looks.clear()
    assert talk.say(user("And this? " + LONG, png(GREEN, 120, 60))) >= seen - 128
    second, both = looks
    assert second[0] + first[0] == both[0]


def test_another_beginning(model: LoadedModel, looks: list[Any]) -> None:
    """What the model sees doesn't depend on the text before."""
    serving = Serving(model, cached=True)
    asked = [
        ask("r", ChatMessage("system", day), user(LONG, png(RED), png(GREEN)), tokens=12)
        for day in ("It is Monday.", "It is Tuesday.")
    ]
    found = [serving.run(request) for request in asked]
    assert len(looks) == 1
    assert [cached for _, cached in found] == [0, 0]
    assert [ids for ids, _ in found] == [Serving(model, batched=False).answer(x) for x in asked]


def test_the_same_text_before_another_picture(model: LoadedModel) -> None:
    """Blocks before a picture don't depend on it."""
    serving = Serving(model, cached=True)
    system = ChatMessage("system", LONG * 2)
    found = [
        serving.run(ask("r", system, user("Who is that?", png(pair)), tokens=12))
        for pair in (RED, GREEN)
    ]
    expected = 0 if serving.paths.needs_boundaries else 128
    assert found[1][1] >= expected
    fresh = Serving(model, batched=False)
    assert found[1][0] == fresh.answer(
        ask("r", system, user("Who is that?", png(GREEN)), tokens=12)
    )


def test_pictures_that_do_not_fit(model: LoadedModel) -> None:
    """The other rows go on."""
    serving = Serving(model)
    good = ask("good", user("See", png(RED)), tokens=12)
    bad = serving.sequence(ask("bad", user("See", png(RED)), tokens=12))
    assert bad.pictures is not None
    arrays = {
        name: array[: len(array) // 2] if name == "pixel_values" else array
        for name, array in bad.pictures.arrays.items()
    }
    serving.engine.add(replace(bad, pictures=replace(bad.pictures, arrays=arrays)))
    serving.engine.add(serving.sequence(good))
    made, broken = [], []
    while serving.engine.active + serving.engine.waiting:
        made += [token.token_id for token in serving.engine.step()]
        broken += serving.engine.remove_broken()
    assert [(sequence.request_id, sequence.pictures) for sequence in broken] == [("bad", True)]
    assert made == Serving(model).answer(good)


def test_the_trial(model: LoadedModel) -> None:
    from worker.vision.trial import why_alone

    assert why_alone(model.model) is None


@pytest.mark.parametrize("fault", ["offset", "shift", "failure", "padding"])
def test_the_trial_finds_faults(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    from worker.mlx_lm.added_caches import RowShifts
    from worker.mlx_lm.row_caches import RowLengths
    from worker.vision.trial import why_alone

    if fault == "shift" and not model.model._shifts:
        pytest.skip("this family has no shifts")
    if fault == "offset":
        # As if all rows were as long as the first.
        monkeypatch.setattr(RowLengths, "offset", property(lambda lengths: lengths.tokens[0]))
    elif fault == "shift":
        own = RowShifts.array.fget  # type: ignore[attr-defined]
        monkeypatch.setattr(RowShifts, "array", property(lambda shifts: own(shifts)[:1] * 0))
    elif fault == "failure":

        def fail(*_: object) -> None:
            raise TypeError("only a single sequence")

        monkeypatch.setattr(RowLengths, "offset", property(fail))
    else:
        monkeypatch.setattr(RowLengths, "mask", lambda *_, **__: None)
    assert why_alone(model.model) is not None


@pytest.mark.slow
def test_prompts_that_must_come_whole(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their pictures come in one call, whatever is cached and however short chunks are."""
    from worker import mlx_vlm
    from worker.vision.prompt import EmbeddedPrompt

    talk = _Conversation(model)
    compute = EmbeddedPrompt.__call__
    calls: list[int] = []

    def call(self: EmbeddedPrompt, tokens: mx.array, cache: list[Any]) -> mx.array:
        calls.append(tokens.shape[1])
        return compute(self, tokens, cache)

    monkeypatch.setattr(mlx_vlm, "computes_in_chunks", lambda *_: False)
    monkeypatch.setattr(EmbeddedPrompt, "__call__", call)
    talk.say(user("See " + LONG, png(RED)))
    asked = talk.cached.sequence(ask("r", *talk.messages[:1], tokens=12))
    assert asked.pictures is not None
    assert calls[0] >= asked.pictures.end
    # The rest of the next turn is text.
    calls.clear()
    assert talk.say(user("And now? " + LONG)) > asked.pictures.end
    calls.clear()
    talk.say(user("And this? " + LONG, png(GREEN)))
    last = talk.cached.sequence(ask("r", *talk.messages[:5], tokens=12))
    assert last.pictures is not None
    assert calls[0] >= last.pictures.end
