"""What a search finds in folders and in the Hugging Face cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gateway.library.folders import search
from tests.gateway.library.test_library import cached, demo


def test_a_stray_configuration_hides_no_models(tmp_path: Path) -> None:
    models = tmp_path / "models"
    one, two = demo(models / "org" / "one"), demo(models / "org" / "two")
    shutil.copy(one / "config.json", models / "org")
    shutil.copy(one / "config.json", models)
    assert {found.source for found in search(str(models))} == {str(one), str(two)}
    # The folders of an encoder's last layers have a configuration each, and are no models.
    encoder = models / "encoder"
    (encoder / "1_Pooling").mkdir(parents=True)
    for folder in (encoder, encoder / "1_Pooling"):
        shutil.copy(one / "config.json", folder)
    found = {model.source: model.description.problem for model in search(str(models))}
    assert found.keys() == {str(one), str(two), str(encoder)}
    assert "there is no tokenizer" in (found[str(encoder)] or "")


def test_a_repository_with_several_models_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    several = cached(tmp_path, "org/several")
    demo(several / "snapshots" / ("b" * 40))
    (several / "refs" / "main").unlink()
    (found,) = search("huggingface")
    assert found.description.problem == (
        f"it has no refs/main, and {'a' * 40} and {'b' * 40} are all whole models: pull it to go on"
    )


def test_a_link_to_a_name_that_is_not_utf_8_is_left_out(tmp_path: Path) -> None:
    models = tmp_path / "models"
    fine = demo(models / "fine")
    (models / "link").symlink_to(demo(tmp_path / os.fsdecode(b"\xff")))
    assert [found.source for found in search(str(models))] == [str(fine)]
