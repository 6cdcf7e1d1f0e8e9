"""What a client needs to know of a gateway and a model."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

# Clients want some text as a key, also where the gateway wants none.
_NO_KEY: Final = "none"
# An answer may have this part of the context: the rest is for the prompt.
_ANSWER_SHARE: Final = 4
# Claude Code asks for so many by itself, and no agent for more.
_LONGEST_ANSWER_TOKENS: Final = 32_000


class Connection(Struct, frozen=True):
    """A model of the gateway at `url`, which has no path. `context_tokens` is the longest prompt
    and answer; 0: nobody knows it. `key` is an API key; None if the gateway has no keys.
    `of_upstream`: the model is that of an upstream, which decides on its context.
    `own_context_tokens` is the longest context that the model knows; 0: nobody knows it.
    """

    url: str
    model: str
    context_tokens: int
    key: str | None = None
    of_upstream: bool = False
    own_context_tokens: int = 0

    @property
    def base_url(self) -> str:
        """The base URL of OpenAI's clients."""
        return f"{self.url}/v1"

    @property
    def shown_key(self) -> str:
        return _NO_KEY if self.key is None else self.key

    @property
    def answer_tokens(self) -> int:
        """The longest answer that an agent should ask for."""
        return min(_LONGEST_ANSWER_TOKENS, max(1, self.context_tokens // _ANSWER_SHARE))
