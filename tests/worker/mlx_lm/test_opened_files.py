"""Which files of weights mlx-lm and mlx-vlm open by themselves. `as_opened` of worker/load/files.py
relies on it, and is needed no more once both open what `weight_files` names.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from protocol.model_folder import weight_files
from tests.support.disk_folders import index, on_disk, shard, written
from worker.mlx_lm.models import read_model


def _opened(monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], Any], folder: Path) -> set[str]:
    names = set()
    load = mx.load

    def record(path: Any, *arguments: Any, **options: Any) -> Any:
        names.add(str(Path(path).relative_to(folder)))
        return load(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(mx, "load", record)
        read(folder)
    return names


@pytest.mark.parametrize("name", ["all of it", "shards left beside shards", "index of side files"])
def test_mlx_lm_reads_no_index(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = on_disk(tmp_path / "model", name)
    # Whatever is damaged would end the load.
    for left in folder.glob("model-*-of-00002.safetensors"):
        if left not in weight_files(folder):
            shutil.copy(weight_files(folder)[0], left)
    every = {path.name for path in folder.glob("model*.safetensors")}
    assert _opened(monkeypatch, read_model, folder) == every


def test_mlx_vlm_reads_the_index_else_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")
    from tests.support.picture_model import picture_model
    from worker.mlx_vlm import read_model as read_seeing

    folder = picture_model(tmp_path / "model")
    weights = (folder / "model.safetensors").read_bytes()
    for name in ("vae.safetensors", "consolidated.safetensors", "optiq/vision.safetensors"):
        written(name, weights)(folder)
    whole, side = "model.safetensors", "optiq/vision.safetensors"
    every = {whole, "vae.safetensors"}
    assert _opened(monkeypatch, read_seeing, folder) == every
    index(shard(1, 2), shard(2, 2))(folder)
    assert _opened(monkeypatch, read_seeing, folder) == every
    index(whole, shard(2, 2), side)(folder)
    assert _opened(monkeypatch, read_seeing, folder) == {whole, side}
