"""mlx-lm's text: tokenizers, detokenizers, parsers of calls, and the search for stop sequences."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from mlx_lm.generate import TextStateMachine
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, NaiveStreamingDetokenizer
from tokenizers.pre_tokenizers import ByteLevel


class Renderer(NamedTuple):
    """`of` is an object with the method `apply_chat_template`. With `is_program` this method runs
    one of mlx-lm's own programs instead of a template in Jinja.
    """

    of: Any
    is_program: bool


def renderer_of(tokenizer: Any) -> Renderer:
    """The renderer of prompts for a tokenizer, which is given as mlx-lm's wrapper.

    mlx-lm's wrapper turns thinking on wherever a model can think, against the default that the
    template's author chose. So the wrapper renders only if it has a program of its own. Otherwise
    transformers' tokenizer renders.
    """
    is_program = tokenizer._chat_template is not None
    return Renderer(tokenizer if is_program else tokenizer._tokenizer, is_program)


def tokenizer_inside(tokenizer: Any) -> Any:
    """transformers' tokenizer in mlx-lm's wrapper."""
    return tokenizer._tokenizer


def parser_name(tokenizer: Any) -> str:
    """The name of the module of the parser that mlx-lm chose for a tokenizer."""
    return str(tokenizer.tool_parser.__module__.rpartition(".")[2])


class StopTexts:
    """Looks for stop sequences in a text that comes in pieces."""

    def __init__(self, texts: tuple[str, ...], *, include: bool) -> None:
        """With `include` a stop sequence that is found is given out, too."""
        # The state of mlx-lm's search; None: there are no stop sequences. Its last part is text
        # that may be the beginning of a stop sequence.
        self._state: Any = None
        if texts:
            machine = TextStateMachine({"normal": [(text, None) for text in texts]})
            self._state = machine.make_state()
        self._texts = texts
        self._include = include
        # The stop sequence that was found. After it no more text is given out.
        self.stop_sequence: str | None = None

    def feed(self, text: str) -> str:
        """Take in a piece of text. Returns the text that surely stands before any stop sequence."""
        if self._state is None or not text:
            return text
        if self.stop_sequence is not None:
            return ""
        held = self._state[-1]
        self._state, before, state = TextStateMachine.step(self._state, text)
        if state is not None:
            return str(before)
        seen = str((held + text).removesuffix(self._state[-1]))
        self.stop_sequence = max(filter(seen.endswith, self._texts), key=len)
        return seen if self._include else str(before)

    def flush(self) -> str:
        """At the end of the answer: the text that was held back."""
        if self._state is None or self.stop_sequence is not None:
            return ""
        self._state, rest, _ = TextStateMachine.flush(self._state)
        return str(rest)


# A token is decoded with so many tokens before it. Decoders look only at a token's neighbours.
_CONTEXT_TOKENS: Final = 8
_LONGEST_CHARACTER_TOKENS: Final = 4
# No character has so many tokens. A character that is still unfinished stays unfinished.
_MOST_HELD_TOKENS: Final = 64


class Detokenizer(Protocol):
    """The part of mlx-lm's streaming detokenizers that is used here."""

    def add_token(self, token: int) -> None:
        """Take in the next token of the answer."""

    def finalize(self) -> None:
        """End the answer: tokens that were held back become text."""

    @property
    def last_segment(self) -> str:
        """The text that has become certain since this property was last read."""


def spell_added_tokens(tokenizer: Any) -> None:
    """Have mlx-lm's detokenizer of byte-level tokens decode added tokens as transformers does.

    An added token may be plain text. mlx-lm takes Latin-1 letters in such a text for bytes, and
    fails if it ends an answer. So the text is spelled in the letters that stand for its bytes.
    """
    detokenizer = tokenizer.detokenizer
    if not isinstance(detokenizer, BPEStreamingDetokenizer):
        return
    letters = set(ByteLevel.alphabet())
    spelling = ByteLevel(add_prefix_space=False, use_regex=False)
    for token, token_id in tokenizer.get_added_vocab().items():
        if not letters.issuperset(token):
            # All detokenizers of the tokenizer share this list.
            detokenizer.tokenmap[token_id] = spelling.pre_tokenize_str(token)[0][0]


def detokenizer_after(prompt_ids: list[int], tokenizer: Any) -> Detokenizer:
    """A detokenizer for an answer that follows a prompt. `tokenizer` is mlx-lm's wrapper.

    mlx-lm's own detokenizers treat an answer as a separate text, and drop the space at its
    beginning, as tokenizers do at the beginning of any text.
    """
    detokenizer: Detokenizer = tokenizer.detokenizer
    if isinstance(detokenizer, NaiveStreamingDetokenizer):
        # This detokenizer also treats each line as a separate text.
        return WindowDetokenizer(prompt_ids, tokenizer)
    # Other detokenizers decode each token alone, except the first token of a text. So any text may
    # stand before the answer.
    for token_id in tokenizer.encode("a", add_special_tokens=False):
        detokenizer.add_token(token_id)
    detokenizer.finalize()
    assert detokenizer.last_segment
    return detokenizer


class WindowDetokenizer:
    """Decodes each token together with some tokens before it. This works for tokenizers of any
    kind.
    """

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
        # After half a character its rest may follow. A space is held too, since some decoders drop
        # a space before a comma.
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
            # Half a character at the beginning can spoil the next character, too.
            if not self._context_text.startswith("\ufffd"):
                return

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids))
