"""The log probabilities of an answer, with the bytes of each token.

A token's bytes may be a part of a character, which no text can show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from protocol.answers import (
    Alternative,
    AnswerPart,
    Logprobs,
    PromptLogprobs,
    PromptToken,
    TokenLogprob,
)
from worker.sampling.scores import Score
from worker.transformers import decoder_of

# SentencePiece writes spaces so, and bytes as <0x0A>.
_SPACE: Final = "\u2581"
_LONGEST_BYTE: Final = len("<0x0A>")
# What can't be has a logarithm that JSON can't write: as OpenAI and vLLM, who send this.
_LEAST: Final = -9999.0
# Tokens and alternatives in one part: well within a worker's frame.
_MOST_ENTRIES: Final = 4096


class LogprobWriter:
    """Of one request."""

    def __init__(self, token_bytes: TokenBytes, prompt_ids: list[int]) -> None:
        self._bytes = token_bytes
        self._prompt_ids = prompt_ids

    def part(self, token_id: int, score: Score) -> AnswerPart:
        """Of one token of the answer."""
        text = self._bytes(token_id)
        return Logprobs((TokenLogprob(text, _finite(score.logprob), self._top(score)),))

    def prompt_parts(self, scores: Sequence[Score]) -> Iterator[PromptLogprobs]:
        """Of the prompt's tokens. `scores` begin with the second token: the first has none."""
        begin, entries, tokens = 0, 0, []
        scored = zip(self._prompt_ids, [None, *scores], strict=True)
        for place, (token_id, score) in enumerate(scored):
            text = self._bytes(token_id)
            if score is None:
                tokens.append(PromptToken(text, None))
            else:
                tokens.append(PromptToken(text, _finite(score.logprob), self._top(score)))
                entries += len(score.top)
            entries += 1
            if entries >= _MOST_ENTRIES:
                yield PromptLogprobs(begin, tuple(tokens))
                begin, entries, tokens = place + 1, 0, []
        if tokens:
            yield PromptLogprobs(begin, tuple(tokens))

    def _top(self, score: Score) -> tuple[Alternative, ...]:
        return tuple(Alternative(self._bytes(each), _finite(value)) for each, value in score.top)


def _finite(logprob: float) -> float:
    """Also of what is no number."""
    return logprob if logprob > _LEAST else _LEAST


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
    decoder = decoder_of(tokenizer)
    kinds = {each.get("type") for each in [decoder, *decoder.get("decoders", [])]}
    if "ByteLevel" in kinds:
        return _of_byte_level
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return _of_sentence_piece
    return None


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
