"""Whatever is in a folder, it is that model's problem, and can be removed."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from gateway.config.machine_rules import _check_heads
from gateway.http.ollama.models import _read
from gateway.library.catalogue import catalogue, look_up, put_aside, remove, with_configured
from gateway.library.description import Description, describe
from gateway.library.finder import Finder
from gateway.library.folders import search
from gateway.memory.estimate import EstimateTerms, estimate
from gateway.memory.weights import EstimateError
from gateway.system.memory import BackEnd
from tests.gateway.library.test_library import cached, configuration, demo
from tests.support.odd_models import ODD, odd

# Nothing but their configuration, or how they are written, is wrong with these: a load finds out.
OFFERED = {
    "config-numbers-as-text",
    "config-context-huge",
    "config-heads-list",
    "config-quantized-oddly",
    "index-deep",
    "index-list",
    "index-of-lists",
    "index-outside",
    "template-list",
    "template-deep",
    "template-folder",
}


@pytest.mark.parametrize("name", ODD)
def test_it_is_described(name: str, tmp_path: Path) -> None:
    described = describe(odd(tmp_path / "model", name))
    assert msgspec.json.decode(msgspec.json.encode(described), type=Description) == described
    assert (described.problem is None) == (name in OFFERED), described.problem
    assert len(described.problem or "") <= 300


@pytest.mark.parametrize("name", ODD)
def test_other_facts_of_odd_model(name: str, tmp_path: Path) -> None:
    """With errors that whoever reads knows of."""
    folder = odd(tmp_path / "model", name)
    with contextlib.suppress(EstimateError):
        found = estimate(folder, EstimateTerms(4096, 1024, 0, None, BackEnd.CPU))
        assert 0 <= found.floor_bytes < 1 << 53
    with contextlib.suppress(OSError, ValueError):
        msgspec.json.encode(_read(str(folder), None))
    with contextlib.suppress(ValueError):
        _check_heads(str(folder), 3)


def _spoiled_cache(cache: Path) -> None:
    """Repositories that no tool has left so."""
    cached(cache, "org/main-not-ascii")
    (cache / "models--org--main-not-ascii" / "refs" / "main").write_bytes(b"\xff\xfe")
    cached(cache, "org/main-elsewhere")
    (cache / "models--org--main-elsewhere" / "refs" / "main").write_text("../../models--org--good")
    cached(cache, "org/main-empty")
    (cache / "models--org--main-empty" / "refs" / "main").write_text("")
    cached(cache, "org/main-pipe")
    (cache / "models--org--main-pipe" / "refs" / "main").unlink()
    os.mkfifo(cache / "models--org--main-pipe" / "refs" / "main")
    (cache / "models--org--file").write_text("no folder")
    (cache / "models--org--loop").symlink_to("models--org--loop")
    (cache / "models--org--dangling").symlink_to("nowhere")
    (cache / f"models--org--{'x' * 230}").mkdir()
    (cache / "models----absolute").mkdir()
    (cache / "models--nobody").mkdir()
    (cache / os.fsdecode(b"models--org--\xff")).mkdir()


def test_the_others_are_found_and_the_odd_ones_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, folders = tmp_path / "cache", tmp_path / "folders"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    cached(cache, "org/good")
    _spoiled_cache(cache)
    demo(folders / "fine")
    for name in ODD:
        odd(folders / name, name)
    (folders / "loop").symlink_to("loop")
    (folders / "dangling").symlink_to("nowhere")
    shutil.copytree(folders / "config-list", folders / os.fsdecode(b"\xff"))
    shutil.copytree(folders / "config-list", folders / ("y" * 255))
    finder = Finder()
    present = finder.with_found(configuration(("huggingface", str(folders))))
    assert set(present.located) == {"good", "fine"} | OFFERED
    found = with_configured(finder.find(present.settings), present)
    entries = catalogue(found, present, {}, {})
    msgspec.json.encode(entries)
    broken = [on_disk for on_disk in entries if on_disk.problem is not None]
    # What has no config.json that is a file is no model, and what has no name can't be named.
    names = ("main-not-ascii", "main-elsewhere", "main-empty", "main-pipe", "file", "loop")
    in_cache = {f"org/{text}" for text in (*names, "dangling", "x" * 230)}
    in_folders = {*ODD, "y" * 255} - OFFERED - {"config-device"}
    assert {model_on_disk.source for model_on_disk in broken} == in_cache | {
        str(folders / in_folder) for in_folder in in_folders
    }
    for on_disk in broken:
        assert look_up(entries, on_disk.source) is on_disk
        remove(put_aside(on_disk), on_disk)
    left = [model.source for place in ("huggingface", str(folders)) for model in search(place)]
    assert sorted(left) == sorted(entry.source for entry in entries if entry not in broken)
    assert not list(cache.glob(".removing*"))
    assert not list(folders.glob(".removing*"))


def test_a_configured_one_spoils_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    _spoiled_cache(cache)
    models = {"odd": "org/main-not-ascii", "demo": str(demo(tmp_path / "fine"))}
    present = configuration((), models=models)
    assert [model.source for model in with_configured([], present)] == [models["demo"]]


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3_5_mtp", "text_config": {}},
        {"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"]},
        {"speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"]},
    ],
)
def test_a_drafter_is_no_model(config: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    assert describe(tmp_path).problem == (
        "it only guesses for another model, which names it as its draft_model"
    )
