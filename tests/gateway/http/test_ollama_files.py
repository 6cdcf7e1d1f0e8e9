"""What a model's files say of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gateway.config.model import Model
from gateway.config.model_folders import DEMO_FOLDER
from gateway.config.model_settings import ModelSettings
from gateway.http.ollama.models import ModelFileReader

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose tokenizer has no template."""
    folder = tmp_path / "model"
    shutil.copytree(DEMO_FOLDER, folder)
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


async def _template(folder: Path) -> str:
    model = Model("m", str(folder), ModelSettings(path=str(folder)))
    return (await ModelFileReader().look_up(model)).template


async def test_a_template_beside_the_tokenizer(folder: Path) -> None:
    assert await _template(folder) == ""
    beside = folder / "chat_template.json"
    beside.write_text(json.dumps({"chat_template": TEMPLATE}))
    assert await _template(folder) == TEMPLATE
    named = [{"name": "default", "template": "first"}, {"name": "tool_use", "template": "second"}]
    beside.write_text(json.dumps({"chat_template": named}))
    assert await _template(folder) == "first"
    # A worker takes the tokenizer's own before that of its pictures' processor.
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "own"}))
    assert await _template(folder) == "own"
    (folder / "chat_template.jinja").write_text("a file of its own")
    assert await _template(folder) == "a file of its own"


@pytest.mark.parametrize("content", ["[]", '{"chat_template": 7}', '{"chat_template": [7]}', "{}"])
async def test_what_is_no_template(folder: Path, content: str) -> None:
    (folder / "chat_template.json").write_text(content)
    assert await _template(folder) == ""
