"""Models that only mlx-vlm knows are computed as texts, by the same engine as mlx-lm's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")

from gateway.library.description import describe
from gateway.memory.caches import cache_shape
from tests.support.picture_model import picture_model
from tests.support.shapes import DEMO
from tests.support.vlm_architectures import TINY_VLM
from tests.support.vlm_folders import write_vlm
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, CacheSizes, measure
from worker.engines.sequence import Engine, Sequence, Token
from worker.engines.sequential import SequentialEngine
from worker.load.loading import LoadedModel, load
from worker.mlx_lm.caches import make_caches
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.path import Paths
from worker.system.errors import ModelError

_UNBOUNDED: Final = CacheRoom(CacheSizes(0, 0, 1.0))
_TOKENS: Final = 24
# As short as the shortest part of a prompt: the cuts of longer ones depend on the machine's speed,
# and with them the answers of those that run alone.
_PROMPTS: Final = ("A ship", "Once there was a ship")
# Only mlx-vlm has these: windows, experts, states beside full attention, shifts of positions,
# latents, compressed entries, and no part beside the text.
_KINDS: Final = (
    "cohere2_moe",
    "deepseek_v4",
    "glm4v",
    "granite4_vision",
    "internvl_chat",
    "k2_horizon",
    "lfm2_vl",
    "mistral_large3",
    "xing4_0",
)
# Its logits depend on where a text is cut into parts.
_ALONE: Final = ("deepseek_v4",)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            config = {**TINY_VLM[kind], "model_type": kind}
            made[kind] = write_vlm(tmp_path_factory.mktemp("models") / kind, config)
        return made[kind]

    return folder


def _load(folder: Path) -> LoadedModel:
    return load(str(folder), lambda _done, _total: None, lambda: False)


def _answers(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    sequences = [
        Sequence(str(row), prompt, _TOKENS, None, ignore_eos=True)
        for row, prompt in enumerate(prompts)
    ]
    return [[token.token_id for token in answer] for answer in _run(engine, sequences)]


def _run(engine: Engine, sequences: list[Sequence]) -> list[list[Token]]:
    answers: dict[str, list[Token]] = {sequence.request_id: [] for sequence in sequences}
    for sequence in sequences:
        engine.add(sequence)
    while any(len(answer) < _TOKENS for answer in answers.values()):
        for token in engine.step():
            answers[token.request_id].append(token)
        engine.store_blocks()
        assert engine.remove_broken() == []
    return list(answers.values())


def _by_itself(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """The likeliest tokens by mlx-vlm alone, one prompt after the other."""
    from mlx_vlm.models.cache import make_prompt_cache
    from mlx_vlm.utils import load_model

    language = load_model(folder).language_model
    answers = []
    for prompt in prompts:
        caches = make_prompt_cache(language)
        if hasattr(language, "_rope_deltas"):
            language._rope_deltas = language._position_ids = None
        language(mx.array([prompt[:-1]]), cache=caches)
        answer = prompt[-1:]
        for _ in range(_TOKENS):
            logits = language(mx.array([answer[-1:]]), cache=caches).logits
            answer.append(int(mx.argmax(logits[0, -1]).item()))
        answers.append(answer[1:])
    return answers


def _engine(loaded: LoadedModel, cache: PromptCache | None = None) -> Engine:
    from worker.vision.trial import why_alone

    caches = Caches(loaded.model)
    if why_alone(loaded.model, looks=False) is None:
        return BatchedEngine(caches.model, (), 8, _UNBOUNDED, cache)
    return SequentialEngine(loaded.model, (), _UNBOUNDED, caches, cache)


def _prompts(loaded: LoadedModel) -> list[list[int]]:
    return [list(loaded.tokenizer.encode(prompt)) for prompt in _PROMPTS]


@pytest.mark.parametrize("kind", _KINDS)
def test_its_texts_are_mlx_vlms(kind: str, folders: Callable[[str], Path]) -> None:
    """Two in a batch, and each alone."""
    folder = folders(kind)
    assert describe(folder).problem is None
    loaded = _load(folder)
    assert loaded.is_by_mlx_vlm
    engine = _engine(loaded)
    assert isinstance(engine, SequentialEngine) == (kind in _ALONE)
    prompts = _prompts(loaded)
    together = _answers(engine, prompts)
    assert together == [_answers(_engine(loaded), [prompt])[0] for prompt in prompts]
    assert len({tuple(answer) for answer in together}) == len(prompts)
    assert together == _by_itself(folder, prompts)


@pytest.mark.parametrize("kind", [kind for kind in _KINDS if kind not in _ALONE])
def test_a_second_prompt_comes_from_the_cache(kind: str, folders: Callable[[str], Path]) -> None:
    loaded = _load(folders(kind))
    caches = Caches(loaded.model)
    cutter = Cutter(caches.run, caches.make)
    assert cutter.can_restore
    engine = _engine(loaded, PromptCache(cutter, None))
    paths = Paths(b"", None, needs_snapshots=cutter.needs_snapshots)
    prompt = (_prompts(loaded)[1] * 30)[:150]

    def ask() -> list[Token]:
        path = paths.find(prompt, "", [len(prompt)])
        return _run(engine, [Sequence("", prompt, _TOKENS, None, ignore_eos=True, path=path)])[0]

    first, second = ask(), ask()
    assert (first[0].cached_tokens, second[0].cached_tokens) == (0, 128)
    assert [token.token_id for token in first] == [token.token_id for token in second]


@pytest.mark.parametrize("kind", _KINDS)
def test_it_takes_the_bytes_of_its_text_alone(kind: str, folders: Callable[[str], Path]) -> None:
    folder = folders(kind)
    loaded = _load(folder)
    own = dict(tree_flatten(loaded.model.parameters())).values()
    assert loaded.weight_bytes == sum(array.nbytes for array in own)
    config = json.loads((folder / "config.json").read_text())
    if "vision_config" in config:
        every = mx.load(str(folder / "model.safetensors")).values()
        assert loaded.weight_bytes < sum(array.nbytes for array in every)
    assert loaded.vocabulary == 704
    assert loaded.context_tokens == 4096


def test_the_gateway_knows_the_bytes_of_a_token_before_the_load(
    folders: Callable[[str], Path],
) -> None:
    folder = folders("mistral_large3")
    model = _load(folder).model
    known = cache_shape(json.loads((folder / "config.json").read_text()), 4)
    assert measure(model, lambda: make_caches(model)).token_bytes == known.full_token_bytes


def test_mlx_vlm_loads_what_mlx_lm_cannot(tmp_path: Path) -> None:
    """mlx-lm wants a place for each weight of a part that doesn't write text."""
    folder = picture_model(tmp_path / "model", "gemma3")
    plain = _load(folder)
    assert not plain.is_by_mlx_vlm
    prompts = _prompts(plain)
    expected = _by_itself(folder, prompts)
    file = str(folder / "model.safetensors")
    weights: dict[str, Any] = {name: array + 0 for name, array in mx.load(file).items()}
    mx.eval(weights)
    mx.save_safetensors(file, {**weights, "audio_tower.weight": mx.ones((8, 8))}, {"format": "mlx"})
    loaded = _load(folder)
    assert loaded.is_by_mlx_vlm
    assert _answers(_engine(loaded), prompts) == expected


def test_mlx_lms_reason_is_told_if_both_fail(tmp_path: Path) -> None:
    folder = shutil.copytree(DEMO, tmp_path / "model")
    mx.save_safetensors(str(folder / "model.safetensors"), {"odd": mx.ones((8, 8))})
    with pytest.raises(ModelError, match="parameters not in model"):
        _load(folder)


def test_without_mlx_vlm_its_models_name_the_line_that_installs_it(
    folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders("k2_horizon")
    monkeypatch.setattr("worker.load.loading.find_spec", lambda _name: None)
    with pytest.raises(ModelError, match=r"k2_horizon\. mlx-vlm may.* installs it: .*vision"):
        _load(folder)


def test_a_kind_that_no_library_knows_is_named(tmp_path: Path) -> None:
    folder = shutil.copytree(DEMO, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bulk"}))
    with pytest.raises(ModelError, match="type bulk, and mlx-vlm knows none"):
        _load(folder)
