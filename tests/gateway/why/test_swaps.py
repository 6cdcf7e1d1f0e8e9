from __future__ import annotations

import pytest

from gateway.why.divergence import divergence_of
from gateway.why.swaps import swapped
from tests.support.asked import text_section


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("Now it is 12:01:33 o'clock", "Now it is 12:01:34 o'clock", "clock"),
        ("now: 9:59 h", "now: 10:00 h", "clock"),
        ("at 3pm today", "at 4pm today", "clock"),
        ("Time 2026-11-27T12:01:33Z.", "Time 2026-11-27T12:02:33Z.", "clock"),
        ("ts 1764240000 end", "ts 1764240013 end", "clock"),
        ("ts 1764240000123 end", "ts 1764240013123 end", "clock"),
        ("Time 2026-11-27T12:01:33Z.", "Time 2026-11-28T12:02:33Z.", "date"),
        ("Today is Friday, November 27.", "Today is Saturday, November 28.", "date"),
        ("Today is November 27.", "Today is November 28.", "date"),
        ("date: 27 Nov 2026", "date: 28 Nov 2026", "date"),
        ("Datum: 27.11.2026", "Datum: 28.11.2026", "date"),
        ("cwd /Users/a/proj1\nx", "cwd /Users/a/other\nx", "path"),
        ("cwd C:\\a\\b x", "cwd C:\\a\\c x", "path"),
        ("in /tmp/tmpab12cd34 x", "in /tmp/tmpzz12cd34 x", "path"),
        ("nonce a8f5f167f44f4964", "nonce b8f5f167f44f4964", "id"),
        ("commit 1a2b3c4d fix", "commit 9a2b3c4d fix", "id"),
        ("You have used 1,200 tokens", "You have used 13,400 tokens", "counter"),
        ("turn 9 of", "turn 10 of", "counter"),
        ("Be terse.", "Be kind.", None),
        ("You help.", "You help. Also be kind.", None),
    ],
)
def test_kind_of_a_swap_is_named(old: str, new: str, kind: str | None) -> None:
    found = swapped(divergence_of(text_section(old), text_section(new)))
    assert (found and found[0]) == kind
    if found is not None:
        assert found[1] in old
        assert found[2] in new
