"""The tables of a card's speeds."""

from __future__ import annotations

import msgspec
import pytest

from bench.card_pages import FIGURES, PAGES, written
from bench.card_report import CardReport, Edits, FirstMinute, OneRow, Streams, render
from bench.results import Generation, MeasuringMachine

MACHINE = MeasuringMachine("processor", 16, "Linux", "3.12.3", "0.32.4", "0.32.2")


def _made(rate: float, last_s: float) -> Generation:
    return Generation(tokens=1000, wall_s=1000 / rate, first_token_s=[0.1, last_s])


def test_ratios_are_judged_by_their_targets() -> None:
    report = CardReport(
        machine=MACHINE,
        card="a card, driver 1",
        streams=[
            Streams("0.6B", 32, [_made(1000, 0.4)], [_made(960, 0.5)], [_made(480, 0.5)]),
            Streams("0.6B", 256, [_made(1000, 1.0)] * 3, [_made(890, 1.4)] * 3, []),
        ],
        rows=[
            OneRow("8B", 30000, [100.0, 120.0, 80.0], [99.0, 60.0, 79.2]),
            OneRow("8B", 200, [1000.0], [968.0]),
        ],
        first=[FirstMinute("0.6B", 20.0, 27.0, [300.0, 1500.0])],
        edits=[Edits("Bulkhead", [5.0, 7.0], 1.0), Edits("another", [8.0], 0.5)],
        failed=["mixture: no memory"],
        seconds=600.0,
    )
    shown = render(report)
    assert "| 0.6B | 32 | 1 | 1,000 | 960 | 0.96 | ≥ 0.95 | 0.40 | 0.50 | 1.25 |  |" in shown
    assert shown.count("| 0.48 | **0.50** | ≥ 0.95 |") == 1
    assert "| **0.89** | ≥ 0.9 | 1.00 | 1.40 | **1.40** | ≤ 1.3 | | |  |" in shown
    assert "| 8B, behind 30,000 tokens | 3 | 100 | 79 | **0.79** | ≥ 0.97 |" in shown
    assert "| 1000 | 968 | **0.968** | ≥ 0.97 |" in shown
    assert "| 0.6B | 20.0 | 27.0 | **1.35** | ≤ 1.3 | 300, 1,500 |" in shown
    assert "| Bulkhead | 2 | 6.0 | **0.75** | ≤ 0.7 | 100% |" in shown
    assert "| another | 1 | 8.0 | |  | 50% |" in shown
    assert "Didn't run: mixture: no memory" in shown
    assert msgspec.json.decode(msgspec.json.encode(report), type=CardReport) == report


def test_parts_that_were_left_out_have_no_table() -> None:
    report = CardReport(MACHINE, "no card", [], [], [], [], [], 1.0)
    assert render(report).count("\n") == 2


@pytest.mark.parametrize("name", PAGES)
def test_pages_have_the_tables_of_the_figures(name: str) -> None:
    report = msgspec.json.decode(FIGURES.read_bytes(), type=CardReport)
    page, table = (FIGURES.parents[1] / name).read_text("utf-8"), PAGES[name](report)
    assert table in page
    assert written(page, table) == page
