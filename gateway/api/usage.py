"""Token counts as OpenAI's objects carry them."""

from __future__ import annotations

from msgspec import Struct

from protocol.messages import Usage


class UsageBody(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> UsageBody:
        return cls(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens + usage.completion_tokens,
        )
