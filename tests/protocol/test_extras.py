"""The line that adds an extra is of this installation's own interpreter, tool and origin."""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from protocol import extras
from protocol.extras import command_to_add

NEEDS = {
    "mlx-bulkhead": ("mlx[cpu]; extra == 'cpu'", "a~=1.2; extra == 'vision'", "b; extra == 'otel'"),
    "mlx": ("mlx-cpu; extra == 'cpu'", "mlx-cuda; extra == 'cuda13'"),
    "mlx-cpu": (),
    "b": (),
}
CLONE = {"url": "file:///home/me/bulk%20head", "dir_info": {}}
EDITABLE = {"url": "file:///home/me/bulk%20head", "dir_info": {"editable": True}}
GIT = {"url": "https://git.example/b", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
PYTHON = sys.executable
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


class _Installed(metadata.Distribution):
    """A distribution of NEEDS, which came from `origin` and was installed by `tool`."""

    origin: dict[str, Any] | None = None
    tool = "pip"

    def __init__(self, name: str) -> None:
        if name not in NEEDS:
            raise metadata.PackageNotFoundError(name)
        self._name = name

    def read_text(self, filename: str) -> str | None:
        if filename == "METADATA":
            lines = [f"Name: {self._name}", "Version: 1.0"]
            lines += [f"Requires-Dist: {need}" for need in NEEDS[self._name]]
            lines += [f"Provides-Extra: {text}" for text in ("cpu", "otel", "vision")]
            return "\n".join(lines)
        if filename == "INSTALLER":
            return f"{self.tool}\n"
        return json.dumps(self.origin) if self.origin and filename == "direct_url.json" else None

    def locate_file(self, path: Any) -> Any:
        raise NotImplementedError


def _command(
    monkeypatch: pytest.MonkeyPatch,
    prefix: Path,
    origin: dict[str, Any] | None,
    *,
    tool: str = "pip",
    file: str = "",
) -> list[str]:
    prefix.mkdir(parents=True, exist_ok=True)
    if file:
        (prefix / file).touch()
    monkeypatch.setattr(_Installed, "origin", origin)
    monkeypatch.setattr(_Installed, "tool", tool)
    monkeypatch.setattr(extras, "distribution", _Installed)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    return shlex.split(command_to_add("vision"))


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        (EDITABLE, ["--editable", "/home/me/bulk head[vision]"]),
        (CLONE, ["mlx-bulkhead[vision] @ file:///home/me/bulk%20head"]),
        (GIT, ["mlx-bulkhead[vision] @ git+https://git.example/b@abc"]),
        (None, ["mlx-bulkhead[vision]==1.0"]),
    ],
)
def test_it_is_of_the_interpreter_and_of_the_origin(
    origin: dict[str, Any] | None,
    wanted: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    by_pip = _command(monkeypatch, tmp_path, origin)
    assert by_pip == [PYTHON, "-m", "pip", "install", *wanted]
    by_uv = _command(monkeypatch, tmp_path, origin, tool="uv")
    assert by_uv == ["uv", "pip", "install", "--python", PYTHON, *wanted]


@pytest.mark.parametrize(
    ("file", "tool"),
    [
        ("uv-receipt.toml", ["uv", "tool", "install", "--reinstall", "--python", VERSION]),
        ("pipx_metadata.json", ["pipx", "install", "--force", "--python", f"python{VERSION}"]),
    ],
)
def test_a_tool_that_makes_the_environment_anew_gets_the_other_extras(
    file: str, tool: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = "mlx-bulkhead[cpu,otel,vision] @ file:///home/me/bulk%20head"
    assert _command(monkeypatch, tmp_path, CLONE, file=file) == [*tool, wanted]


def test_homebrew_gets_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keg = tmp_path / "Cellar" / "bulkhead" / "1.0" / "libexec"
    assert _command(monkeypatch, keg, CLONE) == [
        "uv",
        "pip",
        "install",
        "--python",
        PYTHON,
        "a~=1.2",
    ]


def test_sources_alone_are_installed_from_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.delitem(NEEDS, "mlx-bulkhead")
    monkeypatch.setattr(extras, "distribution", _Installed)
    assert shlex.split(command_to_add("otel"))[-1] == f"{Path(__file__).parents[2]}[otel]"


def test_no_text_names_a_distribution_that_is_on_no_index() -> None:
    """A hint of the code is of command_to_add."""
    root = Path(__file__).parents[2]
    files = [path for room in ("gateway", "worker") for path in (root / room).rglob("*.py")]
    assert [str(file) for file in files if "mlx-bulkhead[" in file.read_text("utf-8")] == []
