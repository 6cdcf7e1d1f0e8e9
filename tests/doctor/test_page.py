from __future__ import annotations

import re
from pathlib import Path

from gateway.doctor.checks import CHECKS, THROUGHPUT

PAGE = Path(__file__).resolve().parents[2] / "docs" / "doctor.md"


def test_the_page_has_every_check_in_order() -> None:
    described = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert described == [each.name for each in (*CHECKS, THROUGHPUT)]
