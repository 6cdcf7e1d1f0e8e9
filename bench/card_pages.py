"""`python -m bench.card_pages`: writes the tables of bench/card.json into README.md and
docs/figures.md, each at the place that is marked for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from bench.card_report import CardReport, render, summary

FIGURES: Final = Path(__file__).with_name("card.json")
PAGES: Final[dict[str, Callable[[CardReport], str]]] = {
    "README.md": summary,
    "docs/figures.md": render,
}
_PLACE: Final = re.compile(r"(<!-- by bench.card_pages -->\n\n).*?(?=\n<!-- end -->\n)", re.DOTALL)


def main() -> None:
    report = msgspec.json.decode(FIGURES.read_bytes(), type=CardReport)
    for name, text in PAGES.items():
        page = FIGURES.parents[1] / name
        page.write_text(written(page.read_text("utf-8"), text(report)), "utf-8")


def written(page: str, text: str) -> str:
    """A page with a text at the place that is marked for it."""
    return _PLACE.sub(lambda match: match[1] + text, page)


if __name__ == "__main__":
    main()
