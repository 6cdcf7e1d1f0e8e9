"""The fenced blocks of the documents."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
OTHER_PAGES: Final = tuple(
    ROOT / text for text in ("CONTRIBUTING.md", "bench/README.md", "deploy/demo_model/README.md")
)

# Behind `sh`: why a block isn't run here.
EXCUSES: Final = {
    "mac": "only a Mac has this",
    "install": "it installs programs, which takes minutes and the internet",
    "stays": "it goes on until somebody ends it",
    "elsewhere": "it needs another machine, or a program that isn't here",
    "replaces": "it replaces the gateway: tests/e2e/test_upgrade.py",
    "long": "it takes minutes",
    "run": "tests/service/test_install_page.py runs it",
    "groups": "tests/e2e/test_groups.py runs it",
    "asked": "it needs the id of a request",
    "checked": "it needs models of other folders and of the hub",
}

_FENCE: Final = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


class Fence(NamedTuple):
    page: Path
    kind: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.name}: {self.text.splitlines()[0]}"


def fences(page: Path) -> list[Fence]:
    found = _FENCE.findall(page.read_text("utf-8"))
    return [Fence(page, kind.strip(), textwrap.dedent(text)) for _, kind, text in found]


def of_kind(*kinds: str) -> list[Fence]:
    return [fence for page in PAGES for fence in fences(page) if fence.kind in kinds]
