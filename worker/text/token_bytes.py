"""What single tokens are in bytes: some are a part of a character, which no text can show."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

# SentencePiece writes spaces so, and bytes as <0x0A>.
_SPACE: Final = "\u2581"
_LONGEST_BYTE: Final = len("<0x0A>")


class TokenBytes:
    """Of one tokenizer, in mlx-lm's wrapper. Not thread-safe."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {
            int(token_id): str(getattr(token, "content", token)).encode()
            for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items()
        }
        self._spell = _speller(tokenizer)
        self._known: dict[int, bytes] = {}

    def __call__(self, token_id: int) -> bytes:
        """Empty for an id that has no token: vocabularies are padded."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._bytes(token_id)
        return known

    def _bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id]
        if token_id >= len(self._tokenizer):
            return b""
        if self._spell is None:
            return str(self._tokenizer.decode([token_id])).encode()
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        return b"" if token is None else self._spell(str(token))


def _speller(tokenizer: Any) -> Callable[[str], bytes] | None:
    """How a token as its tokenizer writes it becomes bytes; None if only its decoder knows."""
    decoder = _decoder(tokenizer)
    kinds = {each.get("type") for each in [decoder, *decoder.get("decoders", [])]}
    if "ByteLevel" in kinds:
        return _of_byte_level
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return _of_sentence_piece
    return None


def _decoder(tokenizer: Any) -> dict[str, Any]:
    """The description that tokenizer.json has of it; nothing for tokenizers of another kind."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    if decoder is None:
        return {}
    described: dict[str, Any] = json.loads(decoder.__getstate__())
    return described


def _of_sentence_piece(token: str) -> bytes:
    if len(token) == _LONGEST_BYTE and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace(_SPACE, " ").encode()


def _of_byte_level(token: str) -> bytes:
    spelled = bytearray()
    for character in token:
        byte = _BYTES.get(character)
        spelled += character.encode() if byte is None else bytes([byte])
    return bytes(spelled)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: a byte that can be printed in Latin-1 stands for itself, and the others, in their
    order, are the characters from 256 on.
    """
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [each for each in range(256) if each not in printed]
    alphabet = {chr(each): each for each in printed}
    return alphabet | {chr(256 + place): each for place, each in enumerate(others)}


_BYTES: Final = _byte_alphabet()
