"""The bytes of tokens, put together, are the text that they are of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tokenizers import KINDS
from worker.sampling.scores import TokenBytes

TEXT = "the ship's Größe 船 ⚓ 👩‍🚀 server\n\tdone"


@pytest.mark.parametrize(
    "kind", ["byte level", "sentencepiece", "sentencepiece, whole", "metaspace"]
)
def test_together_they_are_the_text(kind: str, tmp_path: Path) -> None:
    tokenizer = KINDS[kind](tmp_path / "tokenizer")
    token_bytes = TokenBytes(tokenizer)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    pieces = [token_bytes(identifier) for identifier in ids]
    # Llama 2's kind puts a space before a text.
    assert b"".join(pieces).removeprefix(b" ") == TEXT.encode()
    assert any(len(piece) > 1 for piece in pieces)
    # Parts of a character are themselves.
    assert not all(_is_text(data) for data in pieces)
    assert token_bytes(9999) == b""


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_added_tokens_are_spelled_as_they_are(tmp_path: Path) -> None:
    tokenizer = KINDS["byte level"](tmp_path)
    tokenizer.add_tokens(["<é ▁>"])
    token_bytes = TokenBytes(tokenizer)
    assert [token_bytes(number) for number in (0, 2, 700)] == [
        b"<|endoftext|>",
        b"<|im_end|>",
        b"<think>",
    ]
    assert token_bytes(tokenizer.convert_tokens_to_ids("<é ▁>")) == "<é ▁>".encode()


def test_of_a_kind_that_only_its_decoder_knows(tmp_path: Path) -> None:
    tokenizer = KINDS["word pieces"](tmp_path / "tokenizer")
    token_bytes = TokenBytes(tokenizer)
    assert token_bytes(tokenizer.convert_tokens_to_ids("ship")) == b"ship"
    assert b"door" in token_bytes(tokenizer.convert_tokens_to_ids("##door"))
