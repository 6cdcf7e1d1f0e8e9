"""What is answered to pictures is what mlx-vlm itself would answer."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from protocol.answers import RequestFailed
from protocol.message import pack
from protocol.requests import ChatMessage, ChatPrompt, Generate, Picture, Sampling
from tests.support.pictures import BLACK, GREEN, RED, png
from worker.engines.decoding import Caches
from worker.engines.limits import Context
from worker.engines.room import CacheRoom, CacheSizes
from worker.engines.sequential import SequentialEngine
from worker.load.loading import LoadedModel, load
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import Prepared, prepare
from worker.system.errors import ModelError

pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")

CONTEXT = Context(4096)
PATHS = Paths(b"", None, needs_snapshots=False)
TOKENS = 12
IMAGE = 706
# With some hundred tokens, so that the prompt comes in several chunks, and in blocks of the cache.
LONG = "What is to be seen here? " * 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.picture_model import picture_model

    return picture_model(tmp_path_factory.mktemp("models") / "pictures")


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load(str(folder), lambda _done, _total: None, lambda: False, pictures=True)


def _generate(text: str, *files: bytes, delivered: tuple[int, ...] = ()) -> Generate:
    pictures = tuple(Picture(each, 3, f"picture {at}") for at, each in enumerate(files))
    return Generate(
        request_id="r",
        prompt=ChatPrompt((ChatMessage("user", text, pictures=pictures),)),
        sampling=Sampling(seed=1, temperature=0.0),
        max_tokens=TOKENS,
        ignore_eos=True,
        delivered=pack(delivered),
    )


def _prepare(model: LoadedModel, generate: Generate, paths: Paths = PATHS) -> Prepared:
    prepared = prepare(generate, model, CONTEXT, paths)
    assert isinstance(prepared, Prepared)
    return prepared


def _engine(model: LoadedModel, prompt_cache: PromptCache | None = None) -> SequentialEngine:
    return SequentialEngine(
        model.model,
        (),
        CacheRoom(CacheSizes(0, 0, 1.0)),
        Caches(model.model),
        prompt_cache,
        begin=model.model.begin,
    )


def _run(engine: SequentialEngine, prepared: Prepared) -> tuple[list[int], int]:
    """Token ids, and how many of the prompt came from the cache."""
    engine.add(prepared.sequence)
    tokens = []
    while engine.active + engine.waiting:
        tokens += engine.step()
    assert engine.take_broken() == []
    return [each.token_id for each in tokens], tokens[0].cached_tokens


def _answer(model: LoadedModel, generate: Generate) -> list[int]:
    return _run(_engine(model), _prepare(model, generate))[0]


def _by_mlx_vlm(folder: Path, prepared: Prepared) -> list[int]:
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


@pytest.mark.parametrize("text", ["Who is that?", LONG])
@pytest.mark.parametrize(
    "files",
    [(), (png(RED),), (png(GREEN, 120, 60), png(RED))],
    ids=["none", "one", "two of different size"],
)
def test_as_mlx_vlm_has_it(
    folder: Path, model: LoadedModel, text: str, files: tuple[bytes, ...]
) -> None:
    prepared = _prepare(model, _generate(text, *files))
    assert _run(_engine(model), prepared)[0] == _by_mlx_vlm(folder, prepared)


def test_tells_pictures_apart(model: LoadedModel) -> None:
    answers = [_answer(model, _generate(LONG, each)) for each in (png(RED), png(GREEN))]
    assert answers[0] != answers[1]


def test_one_after_the_other(model: LoadedModel) -> None:
    """Positions that the model keeps of one are not the next one's."""
    asked = [_generate("a b", png(RED)), _generate("a b"), _generate("a b", png(BLACK, 60, 120))]
    alone = [_answer(model, each) for each in asked]
    engine = _engine(model)
    assert [_run(engine, _prepare(model, each))[0] for each in asked] == alone


def test_goes_on_in_another_worker(model: LoadedModel) -> None:
    whole = _answer(model, _generate(LONG, png(RED)))
    for done in (1, 5, TOKENS - 1):
        resumed = _generate(LONG, png(RED), delivered=tuple(whole[:done]))
        assert _answer(model, resumed) == whole[done:]


def test_a_pictures_token_in_an_answer(model: LoadedModel) -> None:
    """It is no picture, also when it comes again with the prompt."""
    resumed = _generate("a b", png(RED), delivered=(IMAGE, 5, IMAGE))
    assert len(_answer(model, resumed)) == TOKENS - 3


def test_goes_on_from_the_prompt_cache(model: LoadedModel) -> None:
    """Positions are shifted by pictures that nobody computes any more."""
    caches = Caches(model.model)
    engine = _engine(model, PromptCache(Cutter(caches.run, caches.make), None))
    asked = msgspec.structs.replace(_generate("a b", png(RED)), max_tokens=150)
    whole, _ = _run(engine, _prepare(model, asked))
    resumed = msgspec.structs.replace(asked, delivered=pack(whole[:140]))
    rest, cached = _run(engine, _prepare(model, resumed))
    assert rest == whole[140:]
    assert cached > len(_prepare(model, asked).prompt_ids)


def test_prompt_cache_knows_pictures(model: LoadedModel) -> None:
    caches = Caches(model.model)
    cache = PromptCache(Cutter(caches.run, caches.make), None)
    engine = _engine(model, cache)
    red, green = _generate(LONG, png(RED)), _generate(LONG, png(GREEN))
    expected = [_answer(model, each) for each in (red, green)]
    found = [_run(engine, _prepare(model, each)) for each in (red, green, red, green)]
    assert [ids for ids, _ in found] == expected * 2
    assert found[0][1] == found[1][1] == 0
    assert found[2][1] == found[3][1] >= 64


def test_others_words_for_pictures(model: LoadedModel) -> None:
    """A text that has the token of a picture is no picture."""
    assert len(_answer(model, _generate("See <|image_pad|>?"))) == TOKENS
    failed = prepare(_generate("See <|image_pad|>?", png(RED)), model, CONTEXT, PATHS)
    assert isinstance(failed, RequestFailed)
    assert failed.code == "invalid_request_error"


def test_refused_by_the_processor(model: LoadedModel) -> None:
    failed = prepare(_generate("a b", png(RED, 3000, 10)), model, CONTEXT, PATHS)
    assert isinstance(failed, RequestFailed)
    assert "aspect ratio" in failed.message


def test_pictures_count_in_the_context(model: LoadedModel) -> None:
    prepared = _prepare(model, _generate("a b", png(RED)))
    alone = _prepare(model, _generate("a b"))
    assert len(prepared.prompt_ids) == len(alone.prompt_ids) + 12 + 2
    failed = prepare(_generate("a b", png(RED)), model, Context(len(prepared.prompt_ids)), PATHS)
    assert isinstance(failed, RequestFailed)
    assert failed.code == "context_length_exceeded"


def test_a_model_without_eyes() -> None:
    from tests.support.shapes import DEMO

    with pytest.raises(ModelError, match="has no part that looks at pictures"):
        load(str(DEMO), lambda _done, _total: None, lambda: False, pictures=True)
