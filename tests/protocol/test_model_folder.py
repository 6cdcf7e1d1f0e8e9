"""What a load takes from a model's folder, told from names and small files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from protocol.model_folder import (
    check_folder,
    check_names,
    end_token_ids,
    opened,
    templates_of,
    weight_files,
)
from tests.support.disk_folders import DISKS, on_disk

PART = "model-00002-of-00002.safetensors"
TWO = ["model-00001-of-00002.safetensors", PART]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["model.safetensors", "config.json"], ["model.safetensors"]),
        ([*TWO, "model.safetensors.index.json"], TWO),
        (["._model.safetensors", "vae.safetensors", "consolidated.safetensors"], []),
        (["Model.safetensors", "xmodel.safetensors", "model.safetensors.part"], []),
        (["2_Dense/model.safetensors", "model/x.safetensors"], []),
        ([*TWO, "model-mtp.safetensors"], [*TWO, "model-mtp.safetensors"]),
        ([*TWO, "model.safetensors"], TWO),
        ([*TWO, "model-00001-of-00003.safetensors"], TWO),
        (["model-00001-of-00001.safetensors", PART], ["model-00001-of-00001.safetensors"]),
        (["model.safetensors", PART], ["model.safetensors"]),
        ([PART, "model-00001-of-00003.safetensors"], ["model-00001-of-00003.safetensors"]),
        (
            [*TWO, "model-00001-of-00001.safetensors", "model_4bit-1-of-2.safetensors"],
            TWO,
        ),
        ([*TWO, "model-mtp-1-of-2.safetensors"], TWO),
    ],
)
def test_names_of_weights_that_are_opened(names: list[str], found: list[str]) -> None:
    assert opened(names) == found
    assert opened(reversed(names)) == found


@pytest.mark.parametrize(
    ("names", "lost"),
    [
        (["model-00001-of-00002.safetensors"], "model-00002-of-00002.safetensors is missing"),
        (["model-1-of-3.safetensors", "model-3-of-3.safetensors"], "model-2-of-3.safetensors is"),
        (["model_00002-of-99999999999999.safetensors"], "model_00001-of-99999999999999.saf"),
        (["model-00000-of-00002.safetensors"], "model-00001-of-00002.safetensors is missing"),
        (["model-mtp-1-of-2.safetensors"], "model-mtp-2-of-2.safetensors is missing"),
    ],
)
def test_a_shard_that_is_missing_is_named(names: list[str], lost: str) -> None:
    with pytest.raises(ValueError, match=lost):
        check_names(["tokenizer.json", *names])


@pytest.mark.parametrize("name", DISKS)
def test_folder_on_disk_has_its_problem(name: str, tmp_path: Path) -> None:
    folder, problem = on_disk(tmp_path / "model", name), DISKS[name][1]
    if problem is None:
        check_folder(folder)
        return
    with pytest.raises(ValueError, match=re.escape(problem)):
        check_folder(folder)


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("a browser's duplicate that is cut off", "model-00001-of-00002 (1).safetensors"),
        ("a folder with the name of weights", "model-extra.safetensors"),
        ("a damaged whole beside shards", "model.safetensors"),
        ("a pointer beside the whole", "model.fp16.safetensors"),
    ],
)
def test_weights_that_are_not_needed_and_not_whole_are_left_out(
    name: str, left: str, tmp_path: Path
) -> None:
    folder = on_disk(tmp_path / "model", name)
    every = {path.name for path in folder.glob("model*.safetensors")}
    assert {path.name for path in weight_files(folder)} == every - {left}


@pytest.mark.parametrize("name", ["tokenizer.model", "sentencepiece.bpe.model", "tekken.json"])
def test_tokenizers_that_transformers_reads(name: str) -> None:
    check_names([name, "model.safetensors"])
    with pytest.raises(ValueError, match="there is no tokenizer"):
        check_names([f"._{name}", "tokenizer_config.json", "model.safetensors"])


def test_side_files_are_opened_for_pictures_alone(tmp_path: Path) -> None:
    for name in ("model.safetensors", "vision/v.safetensors", ".v.safetensors", "b.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    named = ["vision/v.safetensors", ".v.safetensors", "model-1-of-1.safetensors", "a.safetensors"]
    named += ["model.safetensors", "../x.safetensors", str(tmp_path / "b.safetensors"), "b.bin"]
    index = {"weight_map": dict(enumerate(named))}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    own, vision = tmp_path / "model.safetensors", tmp_path / "vision" / "v.safetensors"
    assert weight_files(tmp_path) == [own]
    assert weight_files(tmp_path, pictures=True) == [own, vision]


@pytest.mark.parametrize(
    ("config", "generation", "found"),
    [
        ({"eos_token_id": 5}, None, [5]),
        ({"eos_token_id": [5, 6]}, {}, [5, 6]),
        ({"eos_token_id": 5}, {"eos_token_id": [7, 8]}, [7, 8]),
        ({}, {"eos_token_id": 7}, [7]),
        ({}, {"eos_token_id": 0}, [0]),
        ({"eos_token_id": 5}, {"eos_token_id": None}, [5]),
        ({"eos_token_id": 5}, {"eos_token_id": []}, [5]),
        ({"text_config": {"eos_token_id": 9}}, None, [9]),
        ({"text_config": {"eos_token_id": 9}, "eos_token_id": 5}, None, [5]),
        ({"text_config": {"eos_token_id": 9}, "eos_token_id": None}, {}, [9]),
        ({"text_config": {"eos_token_id": 9}}, {"eos_token_id": 7}, [7]),
        ({"text_config": None, "eos_token_id": "5"}, {"eos_token_id": True}, []),
        ({"eos_token_id": [5, None]}, None, [5]),
    ],
)
def test_end_tokens(
    config: dict[str, Any], generation: dict[str, Any] | None, found: list[int], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert end_token_ids(tmp_path) == found


NAMED = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]


@pytest.mark.parametrize(
    ("files", "found", "of_processor"),
    [
        ({}, {}, False),
        ({"chat_template.jinja": "J"}, {"default": "J"}, False),
        ({"tokenizer_config.json": {"chat_template": "C"}}, {"default": "C"}, False),
        (
            {"tokenizer_config.json": {"chat_template": NAMED}},
            {"tool_use": "T", "default": "D"},
            False,
        ),
        ({"chat_template.json": {"chat_template": "P"}}, {"default": "P"}, True),
        ({"chat_template.json": {"chat_template": NAMED}}, {"tool_use": "T", "default": "D"}, True),
        ({"processor_config.json": {"chat_template": "P"}}, {"default": "P"}, True),
        (
            {"chat_template.jinja": "J", "chat_template.json": {"chat_template": "P"}},
            {"default": "J"},
            False,
        ),
        (
            {
                "tokenizer_config.json": {"chat_template": "C"},
                "chat_template.json": {"chat_template": "P"},
            },
            {"default": "C"},
            False,
        ),
        (
            {
                "chat_template.jinja": "J",
                "additional_chat_templates/rag.jinja": "R",
                "additional_chat_templates/._rag.jinja": "\0",
            },
            {"default": "J", "rag": "R"},
            False,
        ),
        ({"chat_template.json": ["P"], "tokenizer_config.json": {"chat_template": 5}}, {}, False),
    ],
)
def test_chat_templates(
    files: dict[str, Any], found: dict[str, str], of_processor: bool, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text)
    templates = templates_of(tmp_path)
    assert (templates.by_name, templates.of_processor) == (found, of_processor)
    assert templates.text == found.get("default", "")
