"""An answer's text is what it adds to the text of its prompt, whatever the tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import (
    BPEStreamingDetokenizer,
    NaiveStreamingDetokenizer,
    SPMStreamingDetokenizer,
)

from tests.support.answers import text_of, text_stream
from tests.support.templates import templated
from tests.support.tokenizers import KINDS
from worker.mlx_lm.models import read_tokenizer
from worker.mlx_lm.text import WindowDetokenizer
from worker.text.stream import AnswerStream

_FAST = {
    "byte level": BPEStreamingDetokenizer,
    "sentencepiece": SPMStreamingDetokenizer,
    "sentencepiece, whole": SPMStreamingDetokenizer,
}
_TEXTS = st.lists(
    st.sampled_from(
        [
            "ship",
            "server",
            " a",
            " the",
            " ",
            "  ",
            "\n",
            ",",
            " ,",
            ".",
            "é",
            "ö",
            "船",
            "👩‍🚀",
            "x",
        ]
    ),
    min_size=1,
    max_size=30,
).map("".join)


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return KINDS[request.param](tmp_path_factory.mktemp("tokenizer"))


def _pieces(stream: AnswerStream, token_ids: list[int]) -> list[str]:
    parts = [*(stream.add(token_id) for token_id in token_ids), stream.finish(complete=True)]
    return [text_of(part) for part in parts]


@pytest.mark.parametrize("kind", KINDS)
def test_mlx_lm_tells_them_apart(kind: str, tmp_path: Path) -> None:
    """Otherwise the tests below would not test what they name."""
    detokenizer = KINDS[kind](tmp_path).detokenizer
    assert type(detokenizer) is _FAST.get(kind, NaiveStreamingDetokenizer)


@given(text=_TEXTS, data=st.data())
def test_an_answer_is_what_it_adds(tokenizer: Any, text: str, data: st.DataObject) -> None:
    token_ids = list(tokenizer.encode(text, add_special_tokens=False))
    assume(len(token_ids) > 1)
    cut = data.draw(st.integers(1, len(token_ids) - 1))
    before = tokenizer.decode(token_ids[:cut])
    assume(not before.endswith("\ufffd"))
    prompt_ids, answer_ids = token_ids[:cut], token_ids[cut:]
    pieces = _pieces(text_stream(tokenizer, prompt_ids), answer_ids)
    assert "".join(pieces) == tokenizer.decode(token_ids)[len(before) :]
    assert not any("\ufffd" in piece for piece in pieces)
    delivered = data.draw(st.integers(0, len(answer_ids)))
    again = text_stream(tokenizer, prompt_ids)
    assert [text_of(again.add(answer_id)) for answer_id in answer_ids[:delivered]] == pieces[
        :delivered
    ]
    assert _pieces(again, answer_ids[delivered:]) == pieces[delivered:]


def test_the_space_between_prompt_and_answer(tokenizer: Any) -> None:
    token_ids = list(tokenizer.encode("the ship is a server of a ship", add_special_tokens=False))
    end = next(
        index
        for index in range(len(token_ids))
        if tokenizer.decode(token_ids[:index]) == "the ship is"
    )
    pieces = _pieces(text_stream(tokenizer, token_ids[:end]), token_ids[end:])
    assert "".join(pieces) == " a server of a ship"
    stopped = text_stream(tokenizer, token_ids[:end], (" a",))
    assert (stopped.add(token_ids[end]), stopped.stopped) == ([], True)


@pytest.mark.parametrize("tokenizer", sorted(KINDS.keys() - {"word pieces"}), indirect=True)
def test_indented_lines(tokenizer: Any) -> None:
    """Word pieces know no lines."""
    text = "door\n  ship\n    a\n\n  server"
    token_ids = list(tokenizer.encode(f"the{text}", add_special_tokens=False))
    end = next(
        index for index in range(len(token_ids)) if tokenizer.decode(token_ids[:index]) == "the"
    )
    assert "".join(_pieces(text_stream(tokenizer, token_ids[:end]), token_ids[end:])) == text


def test_a_prompt_that_ends_within_a_character(tokenizer: Any) -> None:
    """Only token ids can: whose the character is is anybody's guess, but what follows isn't."""
    token_ids = list(tokenizer.encode("the 船 ship", add_special_tokens=False))
    for cut in range(1, len(token_ids)):
        text = "".join(_pieces(text_stream(tokenizer, token_ids[:cut]), token_ids[cut:]))
        assert tokenizer.decode(token_ids).endswith(text.lstrip("\ufffd"))


@pytest.mark.parametrize(
    "added", ["日é", "<|größe €|>", "ἀρχή", "two words ł é", "über", "plain", "é日"]
)
def test_added_tokens_are_decoded_as_transformers_does(added: str, tmp_path: Path) -> None:
    templated(tmp_path / "model", "", (added,))
    tokenizer = read_tokenizer(tmp_path / "model", [])
    (token_id,) = tokenizer.encode(added, add_special_tokens=False)
    before, after = (tokenizer.encode(text, add_special_tokens=False) for text in ("a 船", " the"))
    for token_ids in ([token_id], [*before, token_id, *after], [token_id, token_id, *after]):
        text = "".join(_pieces(text_stream(tokenizer, before), token_ids))
        assert text == tokenizer.decode(token_ids)


def test_broken_characters_are_not_held_for_ever(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tokenizer = KINDS["metaspace"](tmp_path_factory.mktemp("tokenizer"))
    half = tokenizer.convert_tokens_to_ids("<0xE8>")
    detokenizer = WindowDetokenizer([half], tokenizer)
    for _ in range(200):
        detokenizer.add_token(half)
    assert set(detokenizer.last_segment) == {"\ufffd"}
