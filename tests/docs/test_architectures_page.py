"""The page of architectures has those of the installed libraries."""

from __future__ import annotations

import re
from pathlib import Path

import mlx_vlm.models
import pytest

from tests.docs.fences import ROOT
from tests.support.architectures import TINY
from tests.support.vlm_architectures import TINY_VLM, WITHOUT_VLM_SHAPE

PAGE = (ROOT / "docs" / "architectures.md").read_text("utf-8")


@pytest.mark.parametrize(("library", "configs"), [("mlx-lm", TINY), ("mlx-vlm", TINY_VLM)])
def test_each_architecture_with_a_shape_is_in_the_table(
    library: str, configs: dict[str, object]
) -> None:
    section = PAGE.split(f"## {library}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\w[\w-]*) +\|", section, re.MULTILINE)
    assert sorted(rows) == sorted(["architecture", *configs]), (
        "try them again: python -m bench.families --page"
    )


def test_each_folder_of_mlx_vlm_has_a_shape_or_a_reason() -> None:
    (place,) = mlx_vlm.models.__path__
    folders = {path.parent.name for path in Path(place).glob("*/__init__.py")}
    assert TINY_VLM.keys() | WITHOUT_VLM_SHAPE.keys() == folders
    assert not TINY_VLM.keys() & WITHOUT_VLM_SHAPE.keys()
