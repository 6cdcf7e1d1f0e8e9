"""What is found on disks, what is said of it, and under which ids it is served."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.config.model_folders import DEMO_FOLDER
from gateway.config.model_settings import ModelSettings
from gateway.config.read import Configuration, Located
from gateway.config.settings import DiscoverySettings, GatewaySettings, Settings
from gateway.library.catalogue import (
    ServedModel,
    catalogue,
    check_own_folder,
    look_up,
    objection,
    put_aside,
    remove,
    with_configured,
)
from gateway.library.description import describe, problem_of
from gateway.library.finder import Finder
from gateway.library.folders import search
from gateway.memory.weights import read_weights
from tests.support.disk_folders import DISKS, on_disk


def demo(folder: Path, **config: Any) -> Path:
    """A model that is whole, with other words in its configuration."""
    shutil.copytree(DEMO_FOLDER, folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def cached(cache: Path, repository: str, **config: Any) -> Path:
    """The same as a tool of the hub leaves it."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    demo(folder / "snapshots" / ("a" * 40), **config)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    return folder


def configuration(discover: tuple[str, ...], **fields: Any) -> Configuration:
    models = fields.pop("models", {})
    return Configuration(
        settings=Settings(
            discovery=DiscoverySettings(discover=discover),
            models={item: ModelSettings(path=path) for item, path in models.items()},
            gateway=GatewaySettings(**fields),
        ),
        file=None,
        digest=None,
        located={item: Located(path) for item, path in models.items()},
        absent={},
        sources={},
    )


def test_description_of_model(tmp_path: Path) -> None:
    plain = describe(demo(tmp_path / "plain"))
    assert plain.problem is None
    assert plain.abilities[0] == "text"
    assert plain.has_template
    assert describe(demo(tmp_path / "short", max_position_embeddings=123)).context_tokens == 123
    seeing = describe(demo(tmp_path / "seeing", vision_config={}))
    assert "vision" in seeing.abilities
    calling = demo(tmp_path / "calling")
    (calling / "chat_template.jinja").write_text("{% if tools %}{{ tools }}{% endif %}")
    assert "tools" in describe(calling).abilities
    encoder = describe(demo(tmp_path / "encoder", model_type="bert"))
    assert encoder.abilities == ("embeddings",)


@pytest.mark.parametrize(
    ("model_type", "library", "extra"),
    [("bert", "mlx_embeddings", "embeddings"), ("llama_bidirec", "mlx_vlm", "vision")],
)
def test_the_extra_that_an_encoder_needs_is_named(
    model_type: str, library: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = demo(tmp_path / "encoder", model_type=model_type)
    assert describe(folder).abilities == ("embeddings",)
    monkeypatch.setitem(sys.modules, library, None)
    assert f"[{extra}]" in (describe(folder).problem or "")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
        (lambda folder: os.truncate(folder / "model.safetensors", 5000), "cut off"),
        (lambda folder: os.truncate(folder / "model.safetensors", 3), "cut off"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json"),
        (
            lambda folder: (folder / "config.json").write_text('{"model_type": "whisper"}'),
            "no models of the kind whisper",
        ),
        (
            lambda folder: (folder / "model.safetensors").rename(
                folder / "model-1-of-2.safetensors"
            ),
            "model-2-of-2.safetensors is missing",
        ),
    ],
)
def test_incomplete_model_says_why(tmp_path: Path, spoil: Any, problem: str) -> None:
    folder = demo(tmp_path / "model")
    spoil(folder)
    assert problem in (describe(folder).problem or "")


@pytest.mark.parametrize("name", DISKS)
def test_folders_as_disks_have_them(name: str, tmp_path: Path) -> None:
    """What a load says of them is said before it."""
    folder, problem = on_disk(tmp_path / "model", name), DISKS[name][1]
    said = describe(folder).problem
    if problem is None:
        assert said is None
        assert read_weights(folder).bytes == read_weights(DEMO_FOLDER).bytes
    else:
        assert said is not None
        assert said.startswith("it is not whole: ")
        assert problem in said


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"bits": 4, "group_size": 64}, "4bit"),
        ({"bits": 4, "mode": "affine"}, "4bit"),
        ({"bits": 4, "mode": "mxfp4"}, "mxfp4"),
        ({"bits": 4, "quant_method": "gptq"}, "4bit"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"bits": 0}, None),
        ({"bits": -4}, None),
        ({"bits": True}, None),
        ({"bits": "4"}, None),
        ({"bits": [4]}, None),
        ({"bits": 4, "mode": "weird"}, None),
        ({"bits": 4, "mode": ["mxfp4"]}, None),
        ({}, None),
    ],
)
def test_the_quantization_that_is_told(
    given: dict[str, Any], told: str | None, tmp_path: Path
) -> None:
    folder = demo(tmp_path / "model", quantization=given, dtype="float32")
    header = json.dumps(
        {
            "a.weight": {"dtype": "U32", "shape": [2], "data_offsets": [0, 8]},
            "a.scales": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
        }
    ).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(16)
    (folder / "model.safetensors").write_bytes(content)
    assert describe(folder).quantization == told


def test_weights_without_scales_are_not_quantized(tmp_path: Path) -> None:
    folder = demo(tmp_path / "model", quantization={"bits": 4, "group_size": 64}, dtype="float32")
    assert describe(folder).quantization == "fp32"


def test_the_type_of_the_weights_is_theirs(tmp_path: Path) -> None:
    """config.json may still tell the type that the weights had before a conversion."""
    folder = demo(tmp_path / "model", torch_dtype="float32")
    header = json.dumps(
        {
            "norm": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            "weight": {"dtype": "BF16", "shape": [6], "data_offsets": [4, 16]},
        }
    ).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(16)
    (folder / "model.safetensors").write_bytes(content)
    assert describe(folder).quantization == "bf16"


def test_the_size_follows_links_and_a_removal_frees_none_of_it(tmp_path: Path) -> None:
    real, linked = demo(tmp_path / "elsewhere" / "real"), tmp_path / "models" / "linked"
    linked.mkdir(parents=True)
    for path in real.iterdir():
        (linked / path.name).symlink_to(path)
    os.link(real / "model.safetensors", linked / "hard.bin")
    (found,) = search(str(linked.parent))
    assert found.size_bytes == sum(path.stat().st_size for path in real.iterdir())
    assert found.freed_bytes == 0
    assert found.description.problem is None


@pytest.mark.parametrize("name", ["chat_template.json", "processor_config.json"])
def test_a_template_of_the_processor_is_told(name: str, tmp_path: Path) -> None:
    folder = demo(tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    assert not describe(folder).has_template
    (folder / name).write_text('{"chat_template": "{% if tools %}{% endif %}"}')
    assert describe(folder).has_template
    assert describe(folder).abilities == ("text", "tools")


def test_a_model_of_an_unknown_kind_names_what_may_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.library.description.find_spec", lambda _name: None)
    problem = problem_of({"model_type": "no_such_kind"})
    assert problem is not None
    assert re.search(r"no_such_kind; mlx-vlm may know them: .*install.*vision", problem)


def test_search_finds_models_in_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    assert search("huggingface") == []
    cached(cache, "org/one")
    part = cache / "models--org--two" / "blobs" / f"{'b' * 64}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(10))
    (cache / "datasets--org--data").mkdir()
    one, two = search("huggingface")
    assert (one.source, one.part_bytes, one.description.problem) == ("org/one", 0, None)
    assert (two.source, two.size_bytes, two.part_bytes) == ("org/two", 10, 10)
    assert "pull it to go on" in (two.description.problem or "")
    folders = tmp_path / "models"
    near, far = demo(folders / "a"), demo(folders / "x" / "y" / "b")
    demo(folders / "x" / "y" / "z" / "too deep")
    demo(folders / ".hidden")
    assert {model.source for model in search(str(folders))} == {str(near), str(far)}
    with pytest.raises(OSError, match="nowhere"):
        search(str(tmp_path / "nowhere"))


def test_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, folders = tmp_path / "cache", tmp_path / "models"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    for text in ("me/chat", "you/chat", "me/mine"):
        cached(cache, text)
    cached(cache, "me/broken", model_type="whisper")
    folder = demo(folders / "chat")
    present = configuration(("huggingface", str(folders)), models={"own": "me/mine"})
    found = Finder().with_found(present)
    assert {name: place.path for name, place in found.located.items()} == {
        "own": "me/mine",
        "chat": str(folder),
        "me/chat": "me/chat",
        "you/chat": "you/chat",
    }
    assert found.discovered == {"chat", "me/chat", "you/chat"}
    # What was found goes when it is gone, and nothing else does.
    shutil.rmtree(folder)
    again = Finder().with_found(found)
    assert set(again.located) == {"own", "chat", "you/chat"}
    allowed = configuration(("huggingface",), allow=("you/*",))
    assert set(Finder().with_found(allowed).located) == {"chat"}
    assert not Finder().with_found(configuration(())).located


def test_a_folder_that_is_away_for_a_moment_keeps_its_models(tmp_path: Path) -> None:
    folders = tmp_path / "models"
    demo(folders / "a")
    finder, present = Finder(), configuration((str(folders),))
    assert set(finder.with_found(present).located) == {"a"}
    folders.rename(tmp_path / "away")
    assert set(finder.with_found(present).located) == {"a"}
    (tmp_path / "away").rename(folders)
    shutil.rmtree(folders / "a")
    assert not finder.with_found(present).located


def test_removable_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    for text in ("org/free", "org/loaded", "org/named", "org/draft"):
        cached(cache, text)
    models = {"n": "org/named", "demo": str(DEMO_FOLDER)}
    finder = Finder()
    present = finder.with_found(configuration(("huggingface",), models=models))
    draft = next((cache / "models--org--draft" / "snapshots").iterdir())
    present.located["n"] = Located("org/named", draft_model=str(draft))
    holders = {"loaded": ServedModel("ready", True), "free": ServedModel("unloaded", False)}
    found = with_configured(finder.find(present.settings), present)
    entries = catalogue(found, present, holders, {"org/free": 7.0})

    def why(name: str, pulled: str | None = None) -> str | None:
        entry = look_up(entries, name)
        assert entry is not None
        return objection(entry, present, holders, pulled)

    assert why("org/free") is None
    assert "cancel that first" in (why("free", "7") or "")
    assert "bulkhead unload loaded" in (why("loaded") or "")
    assert "as n" in (why("n") or "")
    assert "n needs it" in (why("draft") or "")
    assert "part of Bulkhead" in (why("demo") or "")
    free = look_up(entries, "free")
    assert free is not None
    assert (free.last_used_at, free.state) == (7.0, "unloaded")
    assert look_up(entries, "nobody") is None
    remove(put_aside(free), free)
    assert not (cache / "models--org--free").exists()


def test_a_folder_with_another_model_in_it_is_not_removed(tmp_path: Path) -> None:
    folder = demo(tmp_path / "models" / "outer")
    demo(folder / "inner")
    present = Finder().with_found(configuration((str(tmp_path / "models"),)))
    (entry,) = catalogue(Finder().find(present.settings), present, {}, {})
    for attempt in (check_own_folder, put_aside):
        with pytest.raises(ValueError, match="another model in it"):
            attempt(entry)
    assert (folder / "inner" / "config.json").exists()
