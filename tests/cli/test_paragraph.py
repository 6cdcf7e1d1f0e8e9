from __future__ import annotations

import pytest

from gateway.cli.output import printable
from gateway.cli.transcript import Paragraph


def test_breaks_lines_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    paragraph = Paragraph("  ", 12)
    for character in "One two three\n\nfour-and-a-lot-more five":
        paragraph.write(character)
    paragraph.close()
    assert capsys.readouterr().out == "  One two\n  three\n\n  four-and-a-lot-more\n  five\n"
    assert paragraph.words == 5


def test_a_word_goes_on_after_an_interruption(capsys: pytest.CaptureFixture[str]) -> None:
    paragraph = Paragraph("", 20)
    paragraph.write("One tw")
    paragraph.end_line()
    paragraph.write("o")
    paragraph.close()
    assert capsys.readouterr().out == "One\ntwo\n"


def test_spaces_between_words_stay(capsys: pytest.CaptureFixture[str]) -> None:
    paragraph = Paragraph("", lambda: 10)
    for (
        character
    ) in "\n\n- a\n    b  c dddd   e\n字字字字字字\n```\nlong  lines  stay\n```\nand end":
        paragraph.write(character)
    paragraph.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["- a", "    b  c", "dddd   e", "字字字字字"]
    assert lines[4:] == ["字", "```", "long  lines  stay", "```", "and end"]


def test_control_characters_are_left_out() -> None:
    family = "\U0001f469\u200d\U0001f467"
    assert printable(f"a\x1b[1m\tb\r\n\x9b\ud800\u00a0{family}") == f"a[1m\tb\n\u00a0{family}"
