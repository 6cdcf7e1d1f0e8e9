"""Tokens to text, with the demo model's tokenizer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.utils import load_tokenizer

from tests.support.answers import text_of, text_stream
from tests.support.shapes import DEMO

TOKENIZER: Any = load_tokenizer(DEMO)


def _pieces(text: str, stop: tuple[str, ...] = (), *, include_stop: bool = False) -> list[str]:
    prompt_ids = TOKENIZER.encode("Bulkhead is", add_special_tokens=False)
    stream = text_stream(TOKENIZER, prompt_ids, stop, include_stop=include_stop)
    pieces = []
    for token in TOKENIZER.encode(text, add_special_tokens=False):
        pieces.append(text_of(stream.add(token)))
        if stream.stopped:
            break
    return [*pieces, text_of(stream.finish(complete=True))]


@given(
    st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
)
@settings(deadline=None)
def test_the_pieces_join_to_the_text(text: str) -> None:
    # mlx-lm's detokenizer can't write NUL.
    assert "".join(_pieces(text)) == text


def test_no_half_characters() -> None:
    pieces = _pieces("Größe 船 ⚓ 👩‍🚀 end")
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (("doors",), "Seven "),
        (("ors clo",), "Seven do"),
        (("never", "close"), "Seven doors "),
        (("Seven",), ""),
        (("at n",), "Seven doors close "),
        (("nightfall",), "Seven doors close at night"),
        (("船",), "Seven doors close at night"),
    ],
)
def test_stop_sequences(stop: tuple[str, ...], expected: str) -> None:
    text = "Seven doors close at night"
    assert "".join(_pieces(text, stop)) == expected
    included = "".join(_pieces(text, stop, include_stop=True))
    if expected == text:
        assert included == text
    else:
        assert included in [expected + text for text in stop]
        assert text.startswith(included)
