"""Log probabilities as OpenAI's two kinds of objects carry them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from protocol.parts import AnswerPart, Logprobs, PromptToken, TokenLogprob


class TopLogprobBody(Struct):
    """`bytes` is there since a token may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobBody(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprobBody]


class ChatLogprobs(Struct):
    content: list[TokenLogprobBody]
    refusal: None = None


class CompletionLogprobs(Struct):
    """`text_offset` counts characters from the beginning of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def tokens_of(parts: Sequence[AnswerPart]) -> tuple[TokenLogprob, ...]:
    """Of all parts, in order."""
    return tuple(each for part in parts if isinstance(part, Logprobs) for each in part.tokens)


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs(
        [
            TokenLogprobBody(
                _text(each.text),
                each.logprob,
                list(each.text),
                [TopLogprobBody(_text(t.text), t.logprob, list(t.text)) for t in each.top],
            )
            for each in tokens
        ]
    )


def completion_logprobs(
    tokens: Sequence[TokenLogprob | PromptToken], offset: int
) -> CompletionLogprobs:
    """`offset`: of the first of them."""
    texts = [_text(each.text) for each in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return CompletionLogprobs(
        texts,
        [each.logprob for each in tokens],
        [{_text(t.text): t.logprob for t in each.top} or None for each in tokens],
        offsets,
    )


def _text(token: bytes) -> str:
    """As OpenAI writes what is no text of its own."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{each:02x}" for each in token)
