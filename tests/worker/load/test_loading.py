"""Folders that can't be loaded say why, in one sentence."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx.utils import tree_flatten

from protocol.requests import ChatMessage, ChatPrompt, SamplingDefaults
from tests.support import shapes
from tests.support.disk_folders import DISKS, on_disk, shard
from tests.support.odd_models import ODD, odd
from worker.load.faults import fault_of
from worker.load.files import fingerprint
from worker.load.loading import LoadedModel, load
from worker.system.errors import LoadAbandonedError, ModelError


def _config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _without(key: str) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        del config[key]
        path.write_text(json.dumps(config))

    return spoil


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def _remove_tokenizer(folder: Path) -> None:
    for path in folder.glob("token*"):
        path.unlink()


def _loaded(folder: Path, **options: Any) -> LoadedModel:
    return load(str(folder), lambda _done, _total: None, lambda: False, **options)


def _differences(model: Any, other: Any) -> list[str]:
    """The weights that two models don't share."""
    own, others = (dict(tree_flatten(item.parameters())) for item in (model, other))
    same = own.keys() & others.keys()
    return sorted({*own, *others} - {name for name in same if (own[name] == others[name]).all()})


def _generation(**fields: object) -> Callable[[Path], object]:
    return lambda folder: (folder / "generation_config.json").write_text(json.dumps(fields))


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda path: (path / "config.json").unlink(), "no config.json"),
    "config is no JSON": (lambda path: (path / "config.json").write_text("{"), "can't be read"),
    "config is a list": (lambda path: (path / "config.json").write_text("[]"), "can't be read"),
    "unknown architecture": (lambda path: _config(path, model_type="hal9000"), "hal9000"),
    "no tokenizer": (_remove_tokenizer, "no tokenizer"),
    "no weights": (lambda path: (path / "model.safetensors").unlink(), "no weights"),
    "truncated weights": (_truncate, "model.safetensors is cut off"),
    "garbage for weights": (
        lambda path: (path / "model.safetensors").write_bytes(b"\xff" * 5000),
        "model.safetensors is damaged",
    ),
    "an empty tokenizer": (
        lambda path: (path / "tokenizer.json").write_text("{}"),
        "tokenizer in",
    ),
    "a text configuration that is a list": (
        lambda path: _config(path, text_config=["x"]),
        "text_config is ['x']",
    ),
    "top_p over 1": (_generation(top_p=5), "top_p is 5"),
    "half a top_k": (_generation(top_k=5.5), "top_k is 5.5"),
    "min_p as text": (_generation(min_p="low"), "min_p is 'low'"),
    "no number for a temperature": (_generation(temperature=True), "temperature is True"),
    "weights of another shape": (
        lambda path: _config(path, hidden_size=256),
        "config.json and the weights don't belong together",
    ),
    "heads that are null": (
        lambda path: _config(path, num_key_value_heads=None),
        "config.json: num_key_value_heads is null, and must be a whole number. Correct the file",
    ),
    "a size as text": (
        lambda path: _config(path, hidden_size="64", rms_norm_eps=[]),
        'config.json: hidden_size is "64", and must be a whole number; rms_norm_eps is [], and',
    ),
    "a size that is missing": (_without("num_hidden_layers"), "num_hidden_layers is missing"),
    "a tie that is null": (
        lambda path: _config(path, tie_word_embeddings=None),
        "tie_word_embeddings is null, and must be true or false",
    ),
    "a context that is null": (
        lambda path: _config(path, max_position_embeddings=None),
        "config.json: max_position_embeddings is null. Correct the file",
    ),
    "an empty quantization": (
        lambda path: _config(path, quantization={}),
        "config.json: quantization is {}, and must have group_size and bits, or be left out",
    ),
    "a quantization without bits": (
        lambda path: _config(path, quantization={"group_size": 64}),
        'quantization is {"group_size": 64}, and must have group_size and bits',
    ),
    "a quantization that is false": (
        lambda path: _config(path, quantization=False),
        "quantization is false, and must have",
    ),
    "a quantization of no method": (
        lambda path: _config(path, quantization_config={"bits": 4}),
        'quantization_config is {"bits": 4}, and must have a quant_method',
    ),
    "code of its own": (
        lambda path: _config(path, model_file="evil.py"),
        "config.json wants the program 'evil.py' to be run (model_file), and Bulkhead runs no",
    ),
    "no heads": (
        lambda path: _config(path, num_attention_heads=0),
        "config.json: num_attention_heads is 0, and must be more than 0. Correct the file",
    ),
    "heads of a size below nothing": (
        lambda path: _config(path, head_dim=-32),
        "config.json: head_dim is -32, and must be more than 0. Correct the file",
    ),
    "a vocabulary below nothing": (
        lambda path: _config(path, vocab_size=-704),
        "config.json: vocab_size is -704, and must be more than 0: correct the file",
    ),
    "no layers": (
        lambda path: _config(path, num_hidden_layers=0),
        "config.json: num_hidden_layers is 0, and must be more than 0: correct the file",
    ),
    "a base of rotations that is null": (
        lambda path: _config(path, model_type="qwen3", head_dim=32, rope_theta=None),
        "config.json: rope_theta is null. Correct the file",
    ),
    "a byte order mark": (
        lambda path: (path / "config.json").write_text(
            (path / "config.json").read_text(), "utf-8-sig"
        ),
        "config.json begins with a byte order mark: save it as UTF-8 without BOM",
    ),
    "a pointer for a configuration": (
        lambda path: (path / "config.json").write_text("version https://git-lfs.github.com/spec"),
        "config.json is only a pointer of Git LFS: get the file by `git lfs pull`",
    ),
    "settings of generation that are a list": (
        lambda path: (path / "generation_config.json").write_text("[]"),
        "generation_config.json has no JSON object: correct the file, or pull the model again",
    ),
    "added tokens cut off": (
        lambda path: (path / "added_tokens.json").write_text("{"),
        "added_tokens.json is no JSON (",
    ),
    "special tokens cut off": (
        lambda path: (path / "special_tokens_map.json").write_text("{"),
        "special_tokens_map.json is no JSON (",
    ),
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


@pytest.mark.parametrize("name", DISKS)
def test_folders_as_disks_have_them(name: str, tmp_path: Path) -> None:
    """They give the demo's weights, or say what is missing."""
    folder, problem = on_disk(tmp_path / "model", name), DISKS[name][1]
    if problem is None:
        assert _differences(_loaded(folder).model, _loaded(shapes.DEMO).model) == []
        return
    with pytest.raises(ModelError) as caught:
        _loaded(folder)
    assert caught.value.reason.startswith(f"{folder} is not whole: ")
    assert problem in caught.value.reason
    assert caught.value.permanent


def test_advice_to_run_code_of_a_model_is_replaced() -> None:
    error = ValueError("Set the option `trust_remote_code=True` to remove this error.")
    fault = fault_of(error, shapes.DEMO)
    assert fault is not None
    assert "Bulkhead runs no programs of models" in fault
    assert "trust" not in fault


def test_a_file_that_was_left_out_and_may_be_needed_is_named(tmp_path: Path) -> None:
    folder = on_disk(tmp_path / "model", "shards")
    for number, name in enumerate(("model", "model-x2", "model-x3"), 1):
        (folder / shard(number, 3)).rename(folder / f"{name}.safetensors")
    (folder / "model-x3.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"Files that were left out: model-x3\.safetensors\."):
        _loaded(folder)


def test_a_folder_whose_name_is_a_pattern(tmp_path: Path) -> None:
    folder = on_disk(tmp_path / "model [4bit]", "shards")
    assert _differences(_loaded(folder).model, _loaded(shapes.DEMO).model) == []


def test_a_draft_model_with_shards_left_beside_it(tmp_path: Path) -> None:
    folder = on_disk(tmp_path / "draft", "shards left beside shards")
    draft = _loaded(shapes.DEMO, draft_path=str(folder)).draft
    assert _differences(draft, _loaded(shapes.DEMO).model) == []


def test_only_files_that_are_opened_count_in_the_fingerprint(tmp_path: Path) -> None:
    folder = on_disk(tmp_path / "model", "shards")
    before = fingerprint(folder)
    for name in (
        "._model-00001-of-00003.safetensors",
        "._config.json",
        "consolidated.safetensors",
        "model.safetensors.index.json",
        "model-00001-of-00004.safetensors",
    ):
        (folder / name).write_bytes(b"\xff" * 100)
        assert fingerprint(folder) == before
    os.utime(folder / "model-00002-of-00003.safetensors", ns=(0, 0))
    changed = fingerprint(folder)
    assert changed != before
    _generation(eos_token_id=5)(folder)
    assert fingerprint(folder) != changed


def test_values_of_a_table_in_config_are_named_with_it(tmp_path: Path) -> None:
    folder = shapes.chunked_attention(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["num_key_value_heads"] = None
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"text_config\.num_key_value_heads is null") as caught:
        load(str(folder), lambda _done, _total: None, lambda: False)
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


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        ({"eos_token_id": 5}, {}, {5}),
        ({"eos_token_id": 5}, {"eos_token_id": [6, 7]}, {6, 7}),
        ({"eos_token_id": None, "text_config": {"eos_token_id": 8}}, {}, {8}),
    ],
)
def test_end_tokens_are_those_of_all_files(
    config: dict[str, object], generation: dict[str, object], ends: set[int], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(shapes.DEMO, folder)
    _config(folder, **config)
    _generation(**generation)(folder)
    # The tokenizer's own is 2.
    assert set(_loaded(folder).eos_token_ids) == ends | {2}


@pytest.mark.parametrize("name", ["chat_template.json", "processor_config.json"])
def test_a_template_of_the_processor_serves_text(name: str, tmp_path: Path) -> None:
    """With the calls of tools that mlx-lm knows by the template."""
    folder = tmp_path / "model"
    shutil.copytree(shapes.DEMO, folder)
    template = (folder / "chat_template.jinja").read_text()
    template += "{% if tools %}<tool_call>{{ tool_call.name }}{% endif %}"
    (folder / "chat_template.jinja").unlink()
    assert not _loaded(folder).tokenizer.has_chat_template
    (folder / name).write_text(json.dumps({"chat_template": template}))
    loaded = _loaded(folder)
    prompt = ChatPrompt((ChatMessage("user", "Hello"),))
    expected = _loaded(shapes.DEMO).chat_template.tokens(prompt)
    assert loaded.chat_template.tokens(prompt) == expected
    assert loaded.tokenizer.tool_call_start == "<tool_call>"


def test_a_context_that_cannot_be_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(shapes.DEMO, folder)
    _config(folder, max_position_embeddings=-5)
    assert load(str(folder), lambda _done, _total: None, lambda: False).context_tokens is None


def test_pictures_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.load.loading.find_spec", lambda _name: None)
    with pytest.raises(ModelError, match=r"This installs it: .*vision") as refused:
        load(str(shapes.DEMO), lambda _done, _total: None, lambda: False, pictures=True)
    assert refused.value.permanent


@pytest.mark.parametrize("name", ODD)
def test_odd_folders_end_no_worker(name: str, tmp_path: Path) -> None:
    """Some of them can be loaded all the same; with others no error but this one comes."""
    with contextlib.suppress(ModelError):
        load(str(odd(tmp_path / "model", name)), lambda _done, _total: None, lambda: False)
