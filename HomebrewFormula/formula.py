"""Writes the formula beside this file, with a resource for each package of the lock.

    MACOSX_DEPLOYMENT_TARGET=26.0 uv pip compile --format pylock.toml --no-header --no-annotate \
        --python-platform aarch64-apple-darwin --python-version 3.13 \
        pyproject.toml HomebrewFormula/build.txt -o HomebrewFormula/pylock.toml
    python HomebrewFormula/formula.py > HomebrewFormula/bulkhead.rb

Homebrew builds from sources as a rule. MLX's would take Xcode and most of an hour, and its Metal
library is published as a wheel alone: so all of them are wheels, by the hashes of the lock.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import parse_wheel_filename

HERE: Final = Path(__file__).resolve().parent
PYTHON: Final = (3, 13)
# By Homebrew's names, the oldest first: MLX has wheels of its own for each.
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
# Written by formula.py, from pylock.toml.
class Bulkhead < Formula
  include Language::Python::Virtualenv

  desc "Model server that gives every MLX model a process of its own"
  license "MIT"
  # The copy of the repository that this tap is.
  head "file://#{Pathname(__dir__).realpath.parent}", using: :git, branch: "main"

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
    """What an interpreter there takes, the best first."""
    platforms = list(mac_platforms(system, "arm64"))
    interpreter = f"cp{PYTHON[0]}{PYTHON[1]}"
    return [
        *cpython_tags(PYTHON, platforms=platforms),
        *compatible_tags(PYTHON, interpreter, platforms),
    ]


def best(package: dict[str, Any], accepted: list[Tag]) -> dict[str, Any]:
    """Its wheel for these tags.

    Raises:
        ValueError: there is none.
    """
    places = {tag: place for place, tag in enumerate(accepted)}
    found = []
    for wheel in package.get("wheels", ()):
        _, _, _, offered = parse_wheel_filename(wheel["url"].rpartition("/")[2])
        if known := [places[each] for each in offered if each in places]:
            found.append((min(known), wheel))
    if not found:
        raise ValueError(f"{package['name']} {package['version']} has no wheel for {accepted[0]}")
    return min(found, key=lambda each: each[0])[1]


def resource(name: str, wheel: dict[str, Any], indent: str) -> str:
    lines = (
        f'resource "{name}" do',
        f'  url "{wheel["url"]}", using: :nounzip',
        f'  sha256 "{wheel["hashes"]["sha256"]}"',
        "end",
    )
    return "".join(f"{indent}{each}\n" for each in lines)


def resources(packages: list[dict[str, Any]]) -> Iterator[str]:
    """Those that are the same everywhere, then those of each system."""
    own: dict[str, list[str]] = {name: [] for name in SYSTEMS}
    for package in packages:
        if (marker := package.get("marker")) and not Marker(marker).evaluate(MAC):
            continue
        wheels = {name: best(package, tags(system)) for name, system in SYSTEMS.items()}
        if len({each["url"] for each in wheels.values()}) == 1:
            yield "\n" + resource(package["name"], wheels["sonoma"], "  ")
            continue
        for name, wheel in wheels.items():
            own[name].append(resource(package["name"], wheel, "    "))
    newest = list(SYSTEMS)[-1]
    for name, each in own.items():
        newer = " :or_newer" if name == newest else ""
        if each:
            yield f"\n  on_{name}{newer} do\n" + "\n".join(each) + "  end\n"


def formula() -> str:
    packages = tomllib.loads((HERE / "pylock.toml").read_text("utf-8"))["packages"]
    python = MAC["python_version"]
    parts = [_HEAD.replace("{python}", python), *resources(packages)]
    return "".join((*parts, _TAIL.replace("{python}", python)))


if __name__ == "__main__":
    print(formula(), end="")
