"""The command that adds an extra to this installation, by the way in which it was made."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.requirements import Requirement

_NAME: Final = "mlx-bulkhead"
_VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


def command_to_add(extra: str) -> str:
    """A line for a shell, which adds an extra and keeps those that are there."""
    pip = (sys.executable, "-m", "pip", "install")
    uv = ("uv", "pip", "install", "--python", sys.executable)
    try:
        installed = distribution(_NAME)
    except PackageNotFoundError:
        # The sources alone, on the path.
        return shlex.join([*pip, "--editable", f"{Path(__file__).parents[1]}[{extra}]"])
    prefix = Path(sys.prefix)
    if "Cellar" in prefix.parts:
        # Homebrew installs without extras, into an environment without pip.
        packages = (
            f"{requirement.name}{requirement.specifier}" for requirement in _needs(installed, extra)
        )
        return shlex.join([*uv, *packages])
    # uv and pipx make the environment anew.
    others = installed.metadata.get_all("Provides-Extra") or ()
    every = sorted({extra, *(other for other in others if _is_there(installed, other))})
    if (prefix / "uv-receipt.toml").is_file():
        tool = ["uv", "tool", "install", "--reinstall", "--python", _VERSION]
        return shlex.join([*tool, *_wanted(installed, every)])
    if (prefix / "pipx_metadata.json").is_file():
        tool = ["pipx", "install", "--force", "--python", f"python{_VERSION}"]
        return shlex.join([*tool, *_wanted(installed, every)])
    by_uv = (installed.read_text("INSTALLER") or "").strip() == "uv"
    return shlex.join([*(uv if by_uv else pip), *_wanted(installed, [extra])])


def _wanted(installed: Distribution, extras: list[str]) -> tuple[str, ...]:
    """What to install: the release of this version, or the sources that this one came from."""
    named = f"{_NAME}[{','.join(extras)}]"
    origin: dict[str, Any] = json.loads(installed.read_text("direct_url.json") or "{}")
    if not origin:
        return (f"{named}=={installed.version}",)
    url = origin["url"]
    if origin.get("dir_info", {}).get("editable"):
        return ("--editable", f"{url2pathname(urlsplit(url).path)}[{','.join(extras)}]")
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return (f"{named} @ {url}",)


def _needs(installed: Distribution, extra: str) -> Iterator[Requirement]:
    """The requirements here that a distribution has for an extra alone."""
    for requirement in map(Requirement, installed.requires or ()):
        marker = requirement.marker
        if marker and "extra" in str(marker) and marker.evaluate({"extra": extra}):
            yield requirement


def _is_there(installed: Distribution, extra: str) -> bool:
    """Whether everything that an extra needs is installed. One that needs nothing here isn't."""
    needs = list(_needs(installed, extra))
    try:
        return bool(needs) and all(
            all(_is_there(distribution(requirement.name), inner) for inner in requirement.extras)
            and bool(distribution(requirement.name).version)
            for requirement in needs
        )
    except PackageNotFoundError:
        return False
