"""What is answered to pictures is what mlx-vlm itself would answer."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from protocol.answers import RequestFailed
from protocol.message_base import pack
from protocol.requests import Generate
from tests.support.pictures import BLACK, GREEN, RED, png
from tests.worker.vision.serving import CONTEXT, Serving, ask, user
from worker.engines.room import Context
from worker.load.loading import LoadedModel, load
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import PreparedRequest, prepare
from worker.system.errors import ModelError

pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")

PATHS = Paths(b"", None, needs_snapshots=False)
IMAGE = 706
TOKENS = 12
# With some hundred tokens, so that the prompt comes in several chunks, and in blocks of the cache.
LONG = "What is to be seen here? " * 20


@pytest.fixture(scope="module", params=["qwen2_vl", "gemma3"])
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    from tests.support.picture_model import picture_model

    return picture_model(tmp_path_factory.mktemp("models") / "pictures", request.param)


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load(str(folder), lambda _done, _total: None, lambda: False, pictures=True)


@pytest.fixture(scope="module")
def qwen2_vl(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    from tests.support.picture_model import picture_model

    folder = picture_model(tmp_path_factory.mktemp("models") / "qwen2_vl")
    return load(str(folder), lambda _done, _total: None, lambda: False, pictures=True)


@pytest.fixture(params=[True, False], ids=["batched", "one at a time"])
def serving(model: LoadedModel, request: pytest.FixtureRequest) -> Serving:
    return Serving(model, batched=request.param)


def _generate(text: str, *files: bytes, delivered: tuple[int, ...] = ()) -> Generate:
    return ask("r", user(text, *files), tokens=TOKENS, delivered=delivered)


def _by_mlx_vlm(folder: Path, prepared: PreparedRequest) -> list[int]:
    import mlx.core as mx
    from mlx_vlm.generate.ar import generate_step
    from mlx_vlm.utils import load_model

    pictures = prepared.sequence.pictures
    arrays = {} if pictures is None else {k: mx.array(v) for k, v in pictures.arrays.items()}
    tokens = mx.array([prepared.prompt_ids])
    steps = generate_step(
        tokens,
        load_model(folder),
        arrays.pop("pixel_values", None),
        mx.ones_like(tokens),
        temperature=0.0,
        max_tokens=TOKENS,
        **arrays,
    )
    return [token for token, _ in steps]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["Who is that?", LONG])
@pytest.mark.parametrize(
    "files",
    [(), (png(RED),), (png(GREEN, 120, 60), png(RED))],
    ids=["none", "one", "two of different size"],
)
def test_as_mlx_vlm_has_it(
    folder: Path, serving: Serving, text: str, files: tuple[bytes, ...]
) -> None:
    generate = _generate(text, *files)
    assert serving.answer(generate) == _by_mlx_vlm(folder, serving.prepare(generate))


def test_tells_pictures_apart(serving: Serving) -> None:
    answers = [serving.answer(_generate(LONG, data)) for data in (png(RED), png(GREEN))]
    assert answers[0] != answers[1]


@pytest.mark.slow
def test_sequences_run_one_after_another(model: LoadedModel, serving: Serving) -> None:
    """Positions that the model keeps of one are not the next one's."""
    asked = [_generate("a b", png(RED)), _generate("a b"), _generate("a b", png(BLACK, 60, 120))]
    alone = [Serving(model).answer(request) for request in asked]
    assert [serving.answer(request) for request in asked] == alone


def test_goes_on_in_another_worker(serving: Serving) -> None:
    whole = serving.answer(_generate(LONG, png(RED)))
    for done in (1, 5, TOKENS - 1):
        resumed = _generate(LONG, png(RED), delivered=tuple(whole[:done]))
        assert serving.answer(resumed) == whole[done:]


def test_a_pictures_token_in_an_answer(serving: Serving) -> None:
    """It is no picture, also when it comes again with the prompt."""
    resumed = _generate("a b", png(RED), delivered=(IMAGE, 5, IMAGE))
    assert len(serving.answer(resumed)) == TOKENS - 3


@pytest.mark.usefixtures("steady_pace")
@pytest.mark.parametrize("batched", [True, False])
def test_goes_on_from_the_prompt_cache(model: LoadedModel, batched: bool) -> None:
    """Positions are shifted by pictures that nobody computes any more."""
    serving = Serving(model, batched=batched, cached=True)
    asked = msgspec.structs.replace(_generate("a b", png(RED)), max_tokens=150)
    whole = serving.answer(asked)
    resumed = msgspec.structs.replace(asked, delivered=pack(whole[:140]))
    for _ in range(2):
        # A model with a window has snapshots of prompts alone.
        rest, cached = serving.run(resumed)
        assert rest == whole[140:]
    assert cached > len(serving.prepare(asked).prompt_ids)


@pytest.mark.parametrize("batched", [True, False])
def test_prompt_cache_knows_pictures(model: LoadedModel, batched: bool) -> None:
    serving = Serving(model, batched=batched, cached=True)
    red, green = _generate(LONG, png(RED)), _generate(LONG, png(GREEN))
    expected = [Serving(model).answer(request) for request in (red, green)]
    found = [serving.run(request) for request in (red, green, red, green)]
    assert [ids for ids, _ in found] == expected * 2
    assert found[0][1] == found[1][1] == 0
    assert found[2][1] == found[3][1] >= 64


def test_others_words_for_pictures(model: LoadedModel, serving: Serving) -> None:
    """A text that has the token of a picture is no picture."""
    word = str(model.tokenizer.decode([IMAGE]))
    assert len(serving.answer(_generate(f"See {word}?"))) == TOKENS


def test_a_word_for_a_picture_beside_one(qwen2_vl: LoadedModel) -> None:
    failed = prepare(_generate("See <|image_pad|>?", png(RED)), qwen2_vl, CONTEXT, PATHS)
    assert isinstance(failed, RequestFailed)
    assert failed.code == "invalid_request_error"


def test_refused_by_the_processor(qwen2_vl: LoadedModel) -> None:
    failed = prepare(_generate("a b", png(RED, 3000, 10)), qwen2_vl, CONTEXT, PATHS)
    assert isinstance(failed, RequestFailed)
    assert "aspect ratio" in failed.message


def test_pictures_count_in_the_context(qwen2_vl: LoadedModel) -> None:
    serving = Serving(qwen2_vl)
    prepared = serving.prepare(_generate("a b", png(RED)))
    alone = serving.prepare(_generate("a b"))
    assert len(prepared.prompt_ids) == len(alone.prompt_ids) + 12 + 2
    most = Context(len(prepared.prompt_ids))
    failed = prepare(_generate("a b", png(RED)), qwen2_vl, most, PATHS)
    assert isinstance(failed, RequestFailed)
    assert failed.code == "context_length_exceeded"


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_5", "gemma3"])
def test_weights_for_texts_alone(kind: str, tmp_path: Path) -> None:
    """mlx-lm's conversions keep the part's shape in config.json."""
    import mlx.core as mx

    from tests.support.picture_model import picture_model

    folder = picture_model(tmp_path / "model", kind)
    path = str(folder / "model.safetensors")
    weights = mx.load(path)
    assert isinstance(weights, dict)
    mx.eval(weights)
    text_weights = {name: weight for name, weight in weights.items() if "vis" not in name}
    assert 0 < len(text_weights) < len(weights)
    mx.save_safetensors(path, text_weights, {"format": "mlx"})
    with pytest.raises(ModelError, match=r"pictures: the weights in .* for texts alone") as caught:
        load(str(folder), lambda _done, _total: None, lambda: False, pictures=True)
    assert caught.value.permanent
    assert "leave pictures out" in caught.value.reason


def test_a_model_without_eyes() -> None:
    from tests.support.shapes import DEMO

    with pytest.raises(ModelError, match="has no part that looks at pictures"):
        load(str(DEMO), lambda _done, _total: None, lambda: False, pictures=True)
