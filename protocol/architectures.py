"""The architectures that mlx-lm and mlx-vlm know.

They are read from the files of these libraries, since an import would import MLX.
"""

from __future__ import annotations

import functools
import re
from importlib.util import find_spec
from pathlib import Path

_REMAPPING = re.compile(r"^MODEL_REMAPPING = \{(.*?)^\}", re.DOTALL | re.MULTILINE)
# The code of every architecture of mlx-vlm that writes text has this name.
_WRITES = "LanguageModel"


def is_mlx_lms(kind: str) -> bool:
    """Whether mlx-lm has the architecture of models of this `model_type`."""
    return kind in _mlx_lms()


def is_mlx_vlms(kind: str) -> bool:
    """Whether mlx-vlm is installed and has such an architecture, which writes text."""
    return kind.lower() in _mlx_vlms()


@functools.cache
def _mlx_lms() -> frozenset[str]:
    package = _package("mlx_lm")
    if package is None:
        return frozenset()
    names = {path.stem for path in (package / "models").glob("*.py")}
    return frozenset(names | _remapped(package))


@functools.cache
def _mlx_vlms() -> frozenset[str]:
    package = _package("mlx_vlm")
    if package is None:
        return frozenset()
    sources = (package / "models").glob("*/*.py")
    names = {path.parent.name for path in sources if _WRITES in path.read_text("utf-8")}
    return frozenset(names | _remapped(package))


def _package(name: str) -> Path | None:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _remapped(package: Path) -> set[str]:
    """Further names of some architectures."""
    table = _REMAPPING.search((package / "utils.py").read_text("utf-8"))
    return set() if table is None else set(re.findall(r'"([^"]+)":', table[1]))
