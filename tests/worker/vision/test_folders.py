"""A load with pictures opens, judges and hashes the files that a load of text does, and the files
beside these that the index names.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from tests.support.disk_folders import Change, index, shard, written
from worker.load.files import fingerprint
from worker.load.loading import LoadedModel, load
from worker.system.errors import ModelError

pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")

WHOLE, SIDE = "model.safetensors", "optiq/optiq_vision.safetensors"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.picture_model import picture_model

    return picture_model(tmp_path_factory.mktemp("models") / "pictures")


@pytest.fixture
def folder(plain: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain, tmp_path / "model"))


def _loaded(folder: Path) -> LoadedModel:
    return load(str(folder), lambda _done, _total: None, lambda: False, pictures=True)


def _weights(folder: Path) -> dict[str, Any]:
    return dict(tree_flatten(_loaded(folder).model.parameters()))


def _split(folder: Path, name: str, belongs: Callable[[str], bool]) -> None:
    """Move those weights into another file."""
    weights = mx.load(str(folder / WHOLE))
    assert isinstance(weights, dict)
    (folder / name).parent.mkdir(exist_ok=True)
    moved = {key: array for key, array in weights.items() if belongs(key)}
    remaining = {key: array for key, array in weights.items() if key not in moved}
    mx.save_safetensors(str(folder / name), moved, {"format": "mlx"})
    mx.save_safetensors(str(folder / "kept.safetensors"), remaining, {"format": "mlx"})
    (folder / "kept.safetensors").replace(folder / WHOLE)


def _sees(name: str) -> bool:
    return name.startswith("visual.")


def _side(folder: Path) -> None:
    """Its part for pictures is in a file that the index names, as OptiQ's is."""
    _split(folder, SIDE, _sees)
    index(WHOLE, SIDE)(folder)


def _side_of_others(folder: Path) -> None:
    """The index names the shards before the model was quantized."""
    _side(folder)
    index(shard(1, 2), shard(2, 2), SIDE)(folder)


def _shards(folder: Path) -> None:
    _split(folder, shard(1, 2), _sees)
    (folder / WHOLE).rename(folder / shard(2, 2))
    index(shard(1, 2), shard(2, 2))(folder)


def _left(folder: Path) -> None:
    """Whole shards with an index of those of an earlier download, one of which is there."""
    _shards(folder)
    index(shard(1, 3), shard(2, 3), shard(3, 3))(folder)
    arrays = mx.load(str(folder / shard(1, 2)))
    assert isinstance(arrays, dict)
    zeros = {name: mx.zeros_like(array) for name, array in arrays.items()}
    mx.save_safetensors(str(folder / shard(2, 3)), zeros, {"format": "mlx"})


def _beside(*names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            written(name, b"\xff" * 100)(folder)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _shards,
        _side,
        _side_of_others,
        _left,
        index(shard(1, 4), shard(2, 4)),
        index("pytorch_model-00001-of-00002.bin"),
        written("model.safetensors.index.json", '{"weight_map": ["a"]}'),
        _beside("vae.safetensors", "consolidated.safetensors", "._model.safetensors"),
    ],
    ids=[
        "shards",
        "side file",
        "side file of others",
        "left shards",
        "other",
        "PyTorch's",
        "broken",
        "files beside",
    ],
)
def test_the_same_weights(change: Change, plain: Path, folder: Path) -> None:
    change(folder)
    found, expected = _weights(folder), _weights(plain)
    assert found.keys() == expected.keys()
    assert [name for name in found if not (found[name] == expected[name]).all()] == []


def test_a_damaged_side_file_is_named(folder: Path) -> None:
    _side(folder)
    before = fingerprint(folder, pictures=True)
    (folder / SIDE).write_bytes((folder / SIDE).read_bytes()[:-10])
    assert fingerprint(folder, pictures=True) != before
    with pytest.raises(ModelError, match=r"optiq_vision\.safetensors is cut off, with "):
        _loaded(folder)


def test_a_missing_shard_is_named(folder: Path) -> None:
    _shards(folder)
    (folder / shard(2, 2)).unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors is missing: finish"):
        _loaded(folder)


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        ({}, {"eos_token_id": [5, 6]}, {5, 6}),
        ({"text_config": {"eos_token_id": 7}}, {}, {7}),
    ],
)
def test_end_tokens_are_those_of_text(
    config: dict[str, Any], generation: dict[str, Any], ends: set[int], folder: Path
) -> None:
    own = json.loads((folder / "config.json").read_text())
    del own["eos_token_id"]
    (folder / "config.json").write_text(json.dumps({**own, **config}))
    (folder / "generation_config.json").write_text(json.dumps(generation))
    # The tokenizer's own is 2.
    assert set(_loaded(folder).eos_token_ids) == ends | {2}


@pytest.mark.parametrize("name", ["chat_template.json", "processor_config.json"])
def test_a_template_of_the_processor(name: str, folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    template = settings.pop("chat_template")
    path.write_text(json.dumps(settings))
    own = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps({**own, "chat_template": template}))
    assert _loaded(folder).tokenizer.chat_template == template
