"""What is built is whole, and works where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import VERSION
from tests.support.folders import short_folder

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "worker", "protocol")
TOOLS = {
    "uv": (["uv", "tool", "install", "--python", sys.executable], ["uv", "tool", "uninstall"]),
    "pipx": (["pipx", "install", "--python", sys.executable], ["pipx", "uninstall"]),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def home() -> Iterator[Path]:
    with short_folder() as folder:
        yield Path(folder)


def test_every_file_is_in_it(wheel: Path) -> None:
    expected = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {text for text in archive.namelist() if ".dist-info/" not in text}
    assert names == expected


def test_it_is_well_where_it_is_unpacked(wheel: Path, home: Path) -> None:
    """Beside the packages of this environment, in front of its own Bulkhead."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(home / "site")
    environment = _environment(home) | {"PYTHONPATH": str(home / "site")}
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "gateway",
            "doctor",
            "--json",
            "--model",
            "demo",
            "--port",
            "0",
        ],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    found = json.loads(done.stdout)["findings"]
    assert done.returncode == 0, [item for item in found if item["severity"] != "ok"]
    assert f"bulkhead {VERSION}, " in next(
        item["evidence"] for item in found if item["check"] == "packages"
    )


@pytest.mark.slow
@pytest.mark.parametrize("tool", TOOLS)
def test_installed_tried_and_removed(tool: str, wheel: Path, home: Path) -> None:
    """With all that it needs, from the package index; nothing of it stays."""
    environment = _environment(home)

    def run(*command: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    if run("uv", "pip", "install", "--dry-run", "--target", "x", "hatchling").returncode != 0:
        pytest.skip("there is no package index")
    install, uninstall = TOOLS[tool]
    extra = "[cpu]" if sys.platform == "linux" else ""
    installed = run(*install, f"mlx-bulkhead{extra} @ {wheel.as_uri()}", seconds=390)
    assert installed.returncode == 0, installed.stderr
    bulkhead = str(home / ".local" / "bin" / "bulkhead")
    assert run(bulkhead, "--version").stdout == f"bulkhead, version {VERSION}\n"
    healthy = run(bulkhead, "doctor", "--model", "demo", "--port", "0")
    assert healthy.returncode == 0, healthy.stdout
    shown = run(bulkhead, "demo")
    assert shown.returncode == 0, shown.stderr
    assert run(*uninstall, "mlx-bulkhead").returncode == 0
    left = [
        path
        for path in home.rglob("*bulkhead*")
        # State and caches, and a lock of pipx's own.
        if not {".cache", "state"} & {*path.parts} and path.suffix != ".lock"
    ]
    assert left == []


def _environment(home: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("BULKHEAD_", "XDG_", "PYTHON", "UV_TOOL", "PIPX_"))
    }
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**kept, "HOME": str(home), "PATH": programs, "USE_EMOJI": "0"}
