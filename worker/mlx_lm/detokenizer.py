"""Token ids to the text that follows a prompt, a token at a time."""

from __future__ import annotations

from typing import Any, Final, Protocol

from mlx_lm.tokenizer_utils import NaiveStreamingDetokenizer

# Decoders look at a token's neighbours, not further.
_CONTEXT_TOKENS: Final = 8
_LONGEST_CHARACTER_TOKENS: Final = 4
# No character has so many tokens: what is still unfinished then stays so.
_MOST_HELD_TOKENS: Final = 64


class Detokenizer(Protocol):
    """What mlx-lm's streaming detokenizers offer of themselves, as far as it is used here."""

    def add_token(self, token: int) -> None:
        """Take in the next token of the answer."""

    def finalize(self) -> None:
        """The answer is over: what was held back becomes text."""

    @property
    def last_segment(self) -> str:
        """The text that has become certain since this was last asked."""


def detokenizer_after(prompt_ids: list[int], tokenizer: Any) -> Detokenizer:
    """For an answer to a prompt: its text is what it adds to the text of the prompt.

    mlx-lm's detokenizers take an answer for a text of its own, and drop the space that it begins
    with, as tokenizers do at the beginning of a text. `tokenizer` is mlx-lm's wrapper.
    """
    detokenizer: Detokenizer = tokenizer.detokenizer
    if isinstance(detokenizer, NaiveStreamingDetokenizer):
        # It also takes each line for a text of its own.
        return WindowDetokenizer(prompt_ids, tokenizer)
    # The others write each token by itself, but for the first: any text before it will do.
    for token_id in tokenizer.encode("a", add_special_tokens=False):
        detokenizer.add_token(token_id)
    detokenizer.finalize()
    assert detokenizer.last_segment
    return detokenizer


class WindowDetokenizer:
    """Decodes each token with some before it, for tokenizers of any kind."""

    def __init__(self, prompt_ids: list[int], tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._context_text = ""
        self._held: list[int] = []
        self._segment = ""
        self._move(prompt_ids)

    @property
    def last_segment(self) -> str:
        segment, self._segment = self._segment, ""
        return segment

    def add_token(self, token: int) -> None:
        self._held.append(token)
        text = self._decode(self._context + self._held)
        # The rest of a character may follow; and some decoders drop a space before a comma.
        unfinished = text.endswith(("\ufffd", " "))
        if not unfinished or len(self._held) >= _MOST_HELD_TOKENS:
            self._release(text)

    def finalize(self) -> None:
        if self._held:
            self._release(self._decode(self._context + self._held))

    def _release(self, text: str) -> None:
        self._segment += text[len(self._context_text) :]
        context = self._context + self._held
        self._held = []
        if len(context) < 2 * _CONTEXT_TOKENS:
            self._context, self._context_text = context, text
        else:
            self._move(context)

    def _move(self, token_ids: list[int]) -> None:
        for count in range(_CONTEXT_TOKENS, _CONTEXT_TOKENS + _LONGEST_CHARACTER_TOKENS):
            self._context = token_ids[-count:]
            self._context_text = self._decode(self._context)
            # Half a character at the beginning can spoil the next one, too.
            if not self._context_text.startswith("\ufffd"):
                return

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids))
