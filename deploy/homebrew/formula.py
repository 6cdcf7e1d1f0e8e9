"""Writes Homebrew's formula and the lock that it is made of: `make formula` puts both into dist/.

Homebrew usually builds from sources. MLX's would take Xcode and most of an hour, and its Metal
library is published as a wheel alone: so all packages are wheels, by the hashes of the lock.

    python deploy/homebrew/formula.py FOLDER [ARCHIVE URL]

Without a released archive and its published address, the formula installs the last commit of this
copy of the repository.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import parse_wheel_filename

ROOT: Final = Path(__file__).resolve().parents[2]
PYTHON: Final = (3, 13)
# Systems by Homebrew's names, the oldest first: MLX has wheels of its own for each.
SYSTEMS: Final = {"sonoma": (14, 0), "sequoia": (15, 0), "tahoe": (26, 0)}
MAC: Final = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "arm64",
    "platform_python_implementation": "CPython",
    "platform_system": "Darwin",
    "python_full_version": ".".join(map(str, (*PYTHON, 0))),
    "python_version": ".".join(map(str, PYTHON)),
    "sys_platform": "darwin",
    "extra": "",
}

_HEAD: Final = """\
# Written by deploy/homebrew/formula.py.
class Bulkhead < Formula
  include Language::Python::Virtualenv

  desc "Model server that gives every MLX model a process of its own"
  license "MIT"
{source}

  depends_on arch: :arm64
  depends_on macos: :sonoma
  depends_on "python@{python}"
"""
_TAIL: Final = """\

  def install
    venv = virtualenv_create(libexec, "python{python}")
    resources.each do |each|
      each.stage { venv.pip_install Pathname.pwd/File.basename(each.url) }
    end
    venv.pip_install buildpath, build_isolation: false
    bin.install_symlink libexec/"bin/bulkhead"
    generate_completions_from_executable(
      bin/"bulkhead", shell_parameter_format: :click, shells: [:bash, :zsh, :fish]
    )
  end

  # Not by `brew services`: it knows neither the time that an orderly end takes nor the GPU.
  def caveats
    <<~EOS
      To have it run from login on, with the models of its configuration:
        bulkhead service install
    EOS
  end

  test do
    assert_match "bulkhead, version", shell_output("#{bin}/bulkhead --version")
  end
end
"""


def tags(system: tuple[int, int]) -> list[Tag]:
    """The tags of the wheels that an interpreter there can install, the best first."""
    platforms = list(mac_platforms(system, "arm64"))
    interpreter = f"cp{PYTHON[0]}{PYTHON[1]}"
    return [
        *cpython_tags(PYTHON, platforms=platforms),
        *compatible_tags(PYTHON, interpreter, platforms),
    ]


def best(package: dict[str, Any], accepted: list[Tag]) -> dict[str, Any]:
    """A package's best wheel for these tags.

    Raises:
        ValueError: there is none.
    """
    places = {tag: place for place, tag in enumerate(accepted)}
    found = []
    for wheel in package.get("wheels", ()):
        _, _, _, offered = parse_wheel_filename(wheel["url"].rpartition("/")[2])
        if known := [places[item] for item in offered if item in places]:
            found.append((min(known), wheel))
    if not found:
        raise ValueError(f"{package['name']} {package['version']} has no wheel for {accepted[0]}")
    return min(found, key=lambda item: item[0])[1]


def resource(name: str, wheel: dict[str, Any], indent: str) -> str:
    lines = (
        f'resource "{name}" do',
        f'  url "{wheel["url"]}", using: :nounzip',
        f'  sha256 "{wheel["hashes"]["sha256"]}"',
        "end",
    )
    return "".join(f"{indent}{line}\n" for line in lines)


def resources(packages: list[dict[str, Any]]) -> Iterator[str]:
    """The resources that are the same everywhere, then those of each system."""
    own: dict[str, list[str]] = {name: [] for name in SYSTEMS}
    for package in packages:
        if (marker := package.get("marker")) and not Marker(marker).evaluate(MAC):
            continue
        wheels = {name: best(package, tags(system)) for name, system in SYSTEMS.items()}
        if len({wheel["url"] for wheel in wheels.values()}) == 1:
            yield "\n" + resource(package["name"], wheels["sonoma"], "  ")
            continue
        for name, wheel in wheels.items():
            own[name].append(resource(package["name"], wheel, "    "))
    newest = list(SYSTEMS)[-1]
    for name, item in own.items():
        newer = " :or_newer" if name == newest else ""
        if item:
            yield f"\n  on_{name}{newer} do\n" + "\n".join(item) + "  end\n"


def released(archive: Path, url: str) -> str:
    """The source of a formula that installs a released archive."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    return f'  url "{url}"\n  sha256 "{digest}"'


def committed(root: Path) -> str:
    """The source of a formula that installs the last commit of a repository's branch main."""
    return f'  head "file://{root}", using: :git, branch: "main"'


def formula(lock: str, source: str) -> str:
    """The text of the formula.

    Raises:
        ValueError: a package of the lock has no wheel for one of the systems.
    """
    packages = tomllib.loads(lock)["packages"]
    python = MAC["python_version"]
    head = _HEAD.replace("{python}", python).replace("{source}", source)
    return "".join((head, *resources(packages), _TAIL.replace("{python}", python)))


def lock() -> str:
    """The packages that this project and its build need on the newest of these systems, as a
    pylock.toml.

    Raises:
        CalledProcessError: uv found no such set of packages, or no index.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    major, minor = list(SYSTEMS.values())[-1]
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build.txt"
        build.write_text("\n".join(project["build-system"]["requires"]), "utf-8")
        command = [
            *("uv", "pip", "compile", "--quiet", "--format", "pylock.toml"),
            *("--no-header", "--no-annotate", "--python-version", str(MAC["python_version"])),
            *("--python-platform", "aarch64-apple-darwin"),
            *(str(ROOT / "pyproject.toml"), str(build), "-o", f"{folder}/pylock.toml"),
        ]
        target = {"MACOSX_DEPLOYMENT_TARGET": f"{major}.{minor}"}
        subprocess.run(command, check=True, env={**os.environ, **target})
        return (Path(folder) / "pylock.toml").read_text("utf-8")


def main(folder: str, archive: str | None = None, url: str = "") -> None:
    source = released(Path(archive), url) if archive else committed(ROOT)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    locked = lock()
    (target / "pylock.toml").write_text(locked, "utf-8")
    (target / "bulkhead.rb").write_text(formula(locked, source), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
