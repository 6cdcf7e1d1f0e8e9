"""A model as a disk has it, with what other programs left in its folder: found, loaded, asked."""

from __future__ import annotations

from pathlib import Path

from tests.support.disk_folders import on_disk
from tests.support.gateway import Gateway


def test_a_folder_with_much_beside_the_model_answers(tmp_path: Path) -> None:
    on_disk(tmp_path / "models" / "crowded", "all of it")
    on_disk(tmp_path / "models" / "half", "a shard that is not finished")
    config = f'[models]\ndiscover = ["{tmp_path / "models"}"]\n'
    gateway = Gateway(models=("demo",), config=config)
    try:
        library = gateway.client.get("/admin/v1/library").raise_for_status().json()["models"]
        said = {Path(item["source"]).name: item["problem"] for item in library}
        assert said["crowded"] is None
        assert "model-00002-of-00002.safetensors.part is unfinished" in said["half"]
        answers = {gateway.say("What is a bulkhead?", text) for text in ("demo", "crowded")}
        assert len(answers) == 1
        assert answers != {""}
    finally:
        gateway.stop()
