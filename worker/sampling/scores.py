"""Log probabilities of the tokens of a text, and of the likeliest tokens in each place: computed on
the device, and written as parts of an answer, with the bytes of each token.

The log probabilities are natural logarithms of the model's own distribution, in single precision:
of its logits before temperature, filters, penalties, biases and masks. So are vLLM's (its
"raw_logprobs"), and OpenAI's, though OpenAI's documents don't say it. So a chosen token can be less
likely than every alternative. The bytes of a token may be only a part of a character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import mlx.core as mx
import numpy as np

from protocol.answers import (
    Alternative,
    AnswerPart,
    Logprobs,
    PromptLogprobs,
    PromptToken,
    TokenLogprob,
)
from protocol.requests import MOST_ALTERNATIVES
from worker.sampling.distribution import in_blocks, width
from worker.system.memory import most_parts
from worker.transformers import decoder_of

# A chunk's logits may always take so much: shorter chunks would read all weights for little work.
_LEAST_BYTES: Final = 64_000_000
# The memory of one logit: in the model's type for all rows, and thrice in single precision for one
# row at a time.
_LOGIT_BYTES: Final = 16
# SentencePiece writes a space as this sign, and single bytes as <0x0A>.
_SPACE: Final = "\u2581"
_LONGEST_BYTE: Final = len("<0x0A>")
# Sent for a probability of 0, whose logarithm JSON can't write; OpenAI and vLLM send the same.
_LEAST: Final = -9999.0
# The most tokens and alternatives in one part, far below the bound of a worker's frame.
_MOST_ENTRIES: Final = 4096


class Score(NamedTuple):
    """A token's log probability. `top` has the ids of the likeliest tokens with their log
    probabilities, best first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Scores:
    """The scores of one token of each row. The device computes the scores beside its other work;
    `read` waits for them.
    """

    def __init__(self, logits: mx.array, token_ids: mx.array, alternatives: Sequence[int]) -> None:
        """`logits`: (rows, vocabulary), of any type. `token_ids`: (rows,). `alternatives`: how many
        each row wants.
        """
        self._alternatives = alternatives
        logprobs = logits.astype(mx.float32)
        logprobs = logprobs - mx.logsumexp(logprobs, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(logprobs, token_ids[:, None], axis=-1)[:, 0]
        self._arrays = [chosen, *(_likeliest(logprobs) if any(alternatives) else ())]
        mx.async_eval(self._arrays)  # type: ignore[no-untyped-call]  # MLX's own stubs
        self._scores: list[Score] | None = None

    def read(self) -> list[Score]:
        if self._scores is None:
            chosen, *likeliest = [np.array(array).tolist() for array in self._arrays]
            self._arrays = []
            if likeliest:
                ids, logprobs = likeliest
                # Equally likely tokens are sorted by id, so that their order never differs.
                pairs = [
                    sorted(zip(*scored, strict=True), key=lambda pair: (-pair[1], pair[0]))
                    for scored in zip(ids, logprobs, strict=True)
                ]
            else:
                pairs = [[] for _ in chosen]
            self._scores = [
                Score(logprob, tuple(top[:count]))
                for logprob, top, count in zip(chosen, pairs, self._alternatives, strict=True)
            ]
        return self._scores


def _likeliest(logprobs: mx.array) -> tuple[mx.array, mx.array]:
    """The ids and log probabilities of each row's likeliest tokens, unordered. All rows get
    MOST_ALTERNATIVES, so that a choice among equals doesn't depend on the other rows.
    """
    vocabulary = logprobs.shape[1]
    count, block_width = min(MOST_ALTERNATIVES, vocabulary), width(vocabulary)
    if 2 * count * block_width > vocabulary:
        ids = mx.argpartition(logprobs, -count, axis=-1)[:, -count:]
        return ids, mx.take_along_axis(logprobs, ids, axis=-1)
    # The likeliest tokens are in the `count` blocks with the largest maxima.
    blocks = in_blocks(logprobs)
    best_blocks = mx.argpartition(blocks.max(axis=-1), -count, axis=-1)[:, -count:, None]
    values = mx.take_along_axis(blocks, best_blocks, axis=1).reshape(-1, count * block_width)
    ids = (best_blocks * block_width + mx.arange(block_width)).reshape(-1, count * block_width)
    best = mx.argpartition(values, -count, axis=-1)[:, -count:]
    return mx.take_along_axis(ids, best, axis=-1), mx.take_along_axis(values, best, axis=-1)


def scored_chunk(rows: int, vocabulary: int, working_bytes: int) -> int:
    """The most tokens of a chunk with so many rows, a power of two. Its logits must fit into
    `working_bytes`, the memory of a step, and into one array.
    """
    tokens = max(working_bytes, _LEAST_BYTES) // (rows * vocabulary * _LOGIT_BYTES)
    tokens = min(tokens, most_parts(rows * vocabulary))
    return 1 << max(tokens, 1).bit_length() - 1


def score_prompt(
    logits: mx.array, token_ids: list[int], begin: int, end: int, alternatives: int
) -> list[Score]:
    """The scores of a prompt's tokens from `begin` + 1 to `end`, both included.

    `logits`: (tokens, vocabulary), of the prompt's tokens from `begin` on; there may be more.
    """
    following = token_ids[begin + 1 : end + 1]
    wanted = [alternatives] * len(following)
    return Scores(logits[: len(following)], mx.array(following), wanted).read()


class LogprobWriter:
    """Writes the scores of one request as parts of its answer."""

    def __init__(self, token_bytes: TokenBytes, prompt_ids: list[int]) -> None:
        self._bytes = token_bytes
        self._prompt_ids = prompt_ids

    def part(self, token_id: int, score: Score) -> AnswerPart:
        """The part for one token of the answer."""
        text = self._bytes(token_id)
        return Logprobs((TokenLogprob(text, _finite(score.logprob), self._top(score)),))

    def prompt_parts(self, scores: Sequence[Score]) -> Iterator[PromptLogprobs]:
        """The parts for the prompt's tokens. `scores` begin with the score of the second token: the
        first token has no score.
        """
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
        return tuple(
            Alternative(self._bytes(token_id), _finite(value)) for token_id, value in score.top
        )


def _finite(logprob: float) -> float:
    """The log probability, or `_LEAST` if it is lower or NaN."""
    return logprob if logprob > _LEAST else _LEAST


class TokenBytes:
    """The bytes of a tokenizer's tokens. Not thread-safe."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is mlx-lm's wrapper."""
        self._tokenizer = tokenizer
        self._added = {
            int(token_id): str(getattr(token, "content", token)).encode()
            for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items()
        }
        self._spell = _speller(tokenizer)
        self._known: dict[int, bytes] = {}

    def __call__(self, token_id: int) -> bytes:
        """The bytes of a token; empty for an id without a token: vocabularies are padded."""
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
    """A function from a token's spelling in the vocabulary to its bytes; None if no rule is known
    and the tokenizer must decode the token.
    """
    decoder = decoder_of(tokenizer)
    kinds = {part.get("type") for part in [decoder, *decoder.get("decoders", [])]}
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
    """GPT-2's alphabet, the byte of each character. A byte that Latin-1 can print is written as its
    character there; the other bytes, in order, are written as the characters from 256 on.
    """
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [index for index in range(256) if index not in printed]
    alphabet = {chr(byte): byte for byte in printed}
    return alphabet | {chr(256 + place): other for place, other in enumerate(others)}


_BYTES: Final = _byte_alphabet()
