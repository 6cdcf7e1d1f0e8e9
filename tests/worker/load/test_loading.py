"""Folders that can't be loaded say why, in one sentence."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.requests import SamplingDefaults
from tests.support import shapes
from tests.support.odd_models import ODD, odd
from worker.load.loading import load
from worker.system.errors import LoadAbandonedError, ModelError


def _config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def _remove_tokenizer(folder: Path) -> None:
    for path in folder.glob("token*"):
        path.unlink()


def _generation(**fields: object) -> Callable[[Path], object]:
    return lambda folder: (folder / "generation_config.json").write_text(json.dumps(fields))


def _index(weight_map: object) -> Callable[[Path], object]:
    return lambda folder: (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": weight_map})
    )


def _name_missing_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda each: (each / "config.json").unlink(), "no config.json"),
    "config is no JSON": (lambda each: (each / "config.json").write_text("{"), "can't be read"),
    "config is a list": (lambda each: (each / "config.json").write_text("[]"), "can't be read"),
    "unknown architecture": (lambda each: _config(each, model_type="hal9000"), "hal9000"),
    "no tokenizer": (_remove_tokenizer, "no tokenizer"),
    "no weights": (lambda each: (each / "model.safetensors").unlink(), "no weights"),
    "truncated weights": (_truncate, "model.safetensors is damaged"),
    "garbage for weights": (
        lambda each: (each / "model.safetensors").write_bytes(b"\xff" * 5000),
        "model.safetensors is damaged",
    ),
    "a missing shard": (_name_missing_shard, "model-00002-of-00002.safetensors is missing"),
    "a shard that is a number": (_index({"a": 5}), "5 is not the name of a file"),
    "a shard elsewhere": (_index({"a": "../b.safetensors"}), "is not the name of a file"),
    "an empty tokenizer": (
        lambda each: (each / "tokenizer.json").write_text("{}"),
        "tokenizer in",
    ),
    "a text configuration that is a list": (
        lambda each: _config(each, text_config=["x"]),
        "text_config is ['x']",
    ),
    "top_p over 1": (_generation(top_p=5), "top_p is 5"),
    "half a top_k": (_generation(top_k=5.5), "top_k is 5.5"),
    "min_p as text": (_generation(min_p="low"), "min_p is 'low'"),
    "no number for a temperature": (_generation(temperature=True), "temperature is True"),
    "weights of another shape": (lambda each: _config(each, hidden_size=256), "shape"),
    "code of its own": (lambda each: _config(each, model_file="evil.py"), "custom module"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_broken_folders(name: str, tmp_path: Path) -> None:
    break_it, expected = BREAKS[name]
    folder = tmp_path / "model"
    shutil.copytree(shapes.DEMO, folder)
    break_it(folder)
    with pytest.raises(ModelError) as caught:
        load(str(folder), lambda _done, _total: None, lambda: False)
    assert expected in caught.value.reason
    assert "\n" not in caught.value.reason
    assert len(caught.value.reason) <= 600
    assert caught.value.permanent


def test_places_that_are_not_there(tmp_path: Path) -> None:
    for source in ("/nowhere/at/all", "owner/not-in-the-cache", str(shapes.DEMO / "config.json")):
        with pytest.raises(ModelError):
            load(source, lambda _done, _total: None, lambda: False)


def test_progress_and_abandonment(tmp_path: Path) -> None:
    folder = shapes.sparse(tmp_path / "large", megabytes=200)
    progress: list[tuple[int, int]] = []
    loaded = load(str(folder), lambda done, total: progress.append((done, total)), lambda: False)
    assert len(progress) > 2
    assert progress == sorted(progress)
    assert progress[-1] == (loaded.weight_bytes, loaded.weight_bytes)
    with pytest.raises(LoadAbandonedError):
        load(str(folder), lambda _done, _total: None, lambda: True)


def test_sampling_settings_of_the_author(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(shapes.DEMO, folder)
    _generation(temperature=0.7, top_k=-1, top_p=None, min_p=0)(folder)
    defaults = load(str(folder), lambda _done, _total: None, lambda: False).sampling_defaults
    assert defaults == SamplingDefaults(temperature=0.7, top_k=0, min_p=0)


def test_a_context_that_cannot_be_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(shapes.DEMO, folder)
    _config(folder, max_position_embeddings=-5)
    assert load(str(folder), lambda _done, _total: None, lambda: False).context_tokens is None


def test_pictures_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.load.loading.find_spec", lambda _name: None)
    with pytest.raises(ModelError, match="pip install 'mlx-bulkhead\\[vision\\]'") as refused:
        load(str(shapes.DEMO), lambda _done, _total: None, lambda: False, pictures=True)
    assert refused.value.permanent


@pytest.mark.parametrize("name", ODD)
def test_odd_folders_end_no_worker(name: str, tmp_path: Path) -> None:
    """Some of them can be loaded all the same; with others no error but this one comes."""
    with contextlib.suppress(ModelError):
        load(str(odd(tmp_path / "model", name)), lambda _done, _total: None, lambda: False)
