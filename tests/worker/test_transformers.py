"""What transformers finds out at an import is kept, and never what it found out before a change. It
sees torch only where pictures are looked at.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support.shapes import DEMO
from worker.transformers import Structure, cached_structure

ROOT = Path(__file__).parents[2]


def test_the_version_that_is_patched_is_pinned() -> None:
    """To one minor version, which is the one here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wanted = [Requirement(dependency) for dependency in project["project"]["dependencies"]]
    (pin,) = [requirement.specifier for requirement in wanted if requirement.name == "transformers"]
    here = Version(version("transformers"))
    assert here in pin
    assert f"{here.major}.{here.minor + 1}.0" not in pin
    assert f"{here.major}.{here.minor - 1}.99" not in pin


class Finder:
    """Finds one more name each time that it is asked."""

    def __init__(self, models: Path) -> None:
        self.asked: list[tuple[Any, str | None]] = []
        self.define = cached_structure(self.find, models)

    def find(self, module_path: Any, prefix: str | None = None) -> Structure:
        self.asked.append((module_path, prefix))
        names = {f"Name{index}" for index in range(len(self.asked))}
        return {frozenset(): {"a.b": names}, frozenset({"torch"}): {"c": {"Other"}}}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "__init__.py").touch()
    return folder


@pytest.fixture(autouse=True)
def _as_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


def test_it_is_found_out_once_for_each_prefix(models: Path) -> None:
    first, second = Finder(models), Finder(models)
    found = [first.define(models, "models"), first.define(str(models / "__init__.py"))]
    assert [prefix for _, prefix in first.asked] == ["models", None]
    assert [second.define(models, "models"), second.define(str(models / "__init__.py"))] == found
    assert not second.asked
    assert [type(values) for values in second.define(models, "models")] == [frozenset] * 2


def test_a_model_of_its_own_is_always_looked_at(models: Path) -> None:
    finder = Finder(models)
    for _ in range(2):
        finder.define(models / "bert" / "__init__.py")
    assert len(finder.asked) == 2
    assert not (models / "__pycache__").exists()


def test_another_installation_is_looked_at_again(models: Path) -> None:
    finder = Finder(models)
    finder.define(models)
    (models / "__init__.py").write_text("# of another version")
    again = finder.define(models)
    assert len(finder.asked) == 2
    (models / "new").mkdir()
    os.utime(models, (1, 1))
    assert finder.define(models) != again
    assert len(finder.asked) == 3


@pytest.mark.parametrize("content", [b"", b"{", b"N", b"garbage" * 100])
def test_a_damaged_structure_is_searched_again(content: bytes, models: Path) -> None:
    finder = Finder(models)
    found = finder.define(models)
    (file,) = (models / "__pycache__").iterdir()
    file.write_bytes(content)
    assert finder.define(models) != found
    assert finder.define(models) == finder.define(models)
    assert len(finder.asked) == 2


def test_a_folder_that_takes_nothing_is_no_harm(models: Path) -> None:
    (models / "__pycache__").touch()
    finder = Finder(models)
    assert finder.define(models)
    assert finder.define(models)
    assert len(finder.asked) == 2


def test_the_structure_is_not_stored_without_bytecode(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    Finder(models).define(models)
    assert not (models / "__pycache__").exists()


@pytest.mark.slow
def test_transformers_itself_takes_it() -> None:
    """And has all of its names still."""
    code = """
import sys
from worker.transformers import cache_import_structure
cache_import_structure()
import transformers.utils.import_utils as utils
scanned, scan = [], utils.create_import_structure_from_path
utils.create_import_structure_from_path = lambda path: scanned.append(str(path)) or scan(path)
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.qwen2 import Qwen2Config
assert utils.define_import_structure.__module__ == "worker.transformers"
models = utils.__file__.replace("utils/import_utils.py", "models")
assert "bert.configuration_bert" in utils.define_import_structure(models)[frozenset()]
assert scanned and models not in scanned and f"{models}/__init__.py" not in scanned
"""
    names = """
import transformers
print(sorted(dir(transformers)))
"""
    prepare = "from worker.transformers import cache_import_structure as prepare; prepare()"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def run(code: str) -> str:
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, timeout=300, env=environment
        ).stdout

    run(f"{prepare}; from transformers import AutoTokenizer")
    assert run(prepare + names) == run(names)
    run(code)


# Whether torch was imported, and what transformers can have.
HAS = """
import sys
import transformers.models.auto.tokenization_auto
utils = sys.modules["transformers.utils.import_utils"]
print("torch" in sys.modules)
for name in ("transformers", "transformers.models", "transformers.models.auto"):
    print(sorted(sys.modules[name]._object_missing_backend))
print(sorted(name for name in dir(transformers) if not name.startswith("_")))
print(utils.is_torch_available(), transformers.utils.generic._is_torch_available)
"""
SERVES_TEXT = f"""
from worker.transformers import cache_import_structure, show_torch
cache_import_structure()
from protocol.requests import ChatMessage, ChatPrompt
from worker.load.loading import load
from worker.mlx_lm.text import detokenizer_after
model = load({str(DEMO)!r}, lambda _done, _total: None, lambda: False)
tokens = model.chat_template.tokens(ChatPrompt((ChatMessage("user", "Hello"),)))
detokenizer = detokenizer_after(tokens, model.tokenizer)
detokenizer.add_token(tokens[-1])
"""


@pytest.fixture
def beside_torch(tmp_path: Path) -> dict[str, str]:
    """An environment with something that looks like torch."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("Tensor = type('Tensor', (), {})\n", "utf-8")
    about = tmp_path / "torch-2.9.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n", "utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}


def test_text_imports_no_torch_and_pictures_find_all_of_it(beside_torch: dict[str, str]) -> None:
    def run(code: str) -> list[str]:
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, timeout=300, env=beside_torch
        )
        return done.stdout.splitlines()

    by_itself, here = run(HAS), run(f"{SERVES_TEXT}show_torch()\n{HAS}")
    assert (by_itself[0], here[0]) == ("True", "False")
    assert here[1:] == by_itself[1:]
    assert here[-1] == "True True"
