from __future__ import annotations

import re
from pathlib import Path

from gateway.cli.doctor import CHECKS, THROUGHPUT

PAGE = Path(__file__).resolve().parents[2] / "docs" / "doctor.md"


def test_the_page_has_every_check_in_order() -> None:
    before, _, _ = PAGE.read_text("utf-8").partition("\n## ")
    described = re.findall(r"^\| `([^`]+)` \|", before, re.MULTILINE)
    checks = (*CHECKS, THROUGHPUT)
    assert described == [check.name for check in checks]
