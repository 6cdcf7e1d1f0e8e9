"""Python, the packages, and their versions."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from gateway.doctor.finding import Finding, error, ok
from gateway.doctor.installation import Installation

_DISTRIBUTION: Final = "mlx-bulkhead"
_INSTALL: Final = "Install Bulkhead anew in this environment, as docs/install.md has it."
_TOLD: Final = ("mlx", "mlx-lm", "transformers", "pyzmq")
# They install the same files, so the last one wins, or breaks the others.
_BACK_ENDS: Final = ("mlx-cpu", "mlx-cuda", "mlx-cuda-12", "mlx-cuda-13")


def look_at_python(_installation: Installation) -> Iterator[Finding]:
    try:
        found = metadata.metadata(_DISTRIBUTION).get_all("Requires-Python")
        wanted = found[0] if found else None
    except metadata.PackageNotFoundError:
        wanted = None
    yield judge_python(platform.python_version(), wanted, sys.platform, platform.machine())


def judge_python(version: str, wanted: str | None, system: str, machine: str) -> Finding:
    """`wanted` is a version specifier, if the package's metadata have one; `system` and `machine`
    as Python names them.
    """
    if system == "darwin" and machine != "arm64":
        return error(
            "python",
            f"Python {version} at {sys.executable} is built for {machine}, and MLX needs arm64.",
            "Install an arm64 Python, and Bulkhead in it.",
        )
    if not SpecifierSet(wanted or "").contains(version, prereleases=True):
        return error(
            "python",
            f"Python {version} runs this, and Bulkhead needs {wanted}.",
            "Install Bulkhead anew with another Python, as docs/install.md has it.",
        )
    return ok("python", f"{version} on {machine}, {sys.executable}")


def look_at_packages(_installation: Installation) -> Iterator[Finding]:
    # The metadata of some are damaged.
    installed: dict[str, str] = {
        canonicalize_name(each.metadata["Name"]): each.version
        for each in metadata.distributions()
        if "Name" in each.metadata
    }
    try:
        requirements = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        requirements = None
    yield from judge_packages(requirements, installed)


def judge_packages(
    requirements: Sequence[str] | None, installed: Mapping[str, str]
) -> Iterator[Finding]:
    """`requirements` None: Bulkhead itself isn't installed. `installed`: canonical names."""
    if requirements is None:
        yield error("packages", f"{_DISTRIBUTION} is not installed in this environment.", _INSTALL)
        return
    wrong = list(_unmet(requirements, installed))
    for evidence in wrong:
        yield error("packages", evidence, _INSTALL)
    back_ends = [each for each in _BACK_ENDS if each in installed]
    if len(back_ends) > 1:
        yield error(
            "packages",
            f"{' and '.join(back_ends)} are both installed, and overwrite each other's files.",
            "Make the environment anew with one of them, as docs/install.md has it.",
        )
    elif not wrong:
        versions = (f"{name} {installed[name]}" for name in _TOLD if name in installed)
        yield ok("packages", f"bulkhead {installed.get(_DISTRIBUTION)}, {', '.join(versions)}")


def _unmet(requirements: Sequence[str], installed: Mapping[str, str]) -> Iterator[str]:
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = installed.get(canonicalize_name(requirement.name))
        if version is None:
            yield f"{requirement.name} is missing."
        elif not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name} is {version}, and Bulkhead needs {requirement.specifier}."
