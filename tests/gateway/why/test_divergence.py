from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.why.divergence import BEFORE, BEHIND, common_length, divergence_of
from gateway.why.sections import PIECE, WHOLE
from tests.support.asked import text_section

# From texts of some characters to ones that are remembered only in part.
SOME = st.text("ab \n", max_size=40)
REPEATED = st.sampled_from((1, 7, 700, 1_000))


@given(SOME, SOME)
def test_common_length_is_that_of_the_common_prefix(one: str, other: str) -> None:
    length = common_length(one, other)
    assert one[:length] == other[:length]
    assert one[length : length + 1] != other[length : length + 1] or one == other


@given(SOME, REPEATED, st.data())
def test_place_is_found_in_texts_of_any_length(some: str, times: int, data: st.DataObject) -> None:
    text = (some or "a") * times
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(st.sampled_from(("", "X", "XYZ")))
    cut = data.draw(st.integers(0, 3))
    changed = text[:at] + put + text[at + cut :]
    true = common_length(text, changed)
    place = divergence_of(text_section(text), text_section(changed))
    assert place.at <= true <= place.at + place.within
    assert place.within <= PIECE
    if len(text) < WHOLE - 3:
        assert place.within == 0


@given(SOME, REPEATED, st.data())
def test_excerpts_are_of_the_texts(some: str, times: int, data: st.DataObject) -> None:
    text = (some or "a") * times
    at = data.draw(st.integers(0, len(text)))
    changed = f"{text[:at]}X{text[at:]}"
    place = divergence_of(text_section(text), text_section(changed))
    for whole, excerpt in ((text, place.old), (changed, place.new)):
        if excerpt is not None:
            assert whole[: place.at].endswith(excerpt.before)
            assert whole[place.at :].startswith(excerpt.behind)
            assert len(excerpt.before) <= BEFORE
            assert len(excerpt.behind) <= BEHIND + PIECE


def test_very_long_text_tells_where_its_hashes_end() -> None:
    text = "a" * 400_000
    place = divergence_of(text_section(text), text_section(text[:-5] + "b" * 5))
    assert place.at <= 400_000 - 5 <= place.at + place.within
    assert (place.old, place.new) == (None, None) or place.within == 0
