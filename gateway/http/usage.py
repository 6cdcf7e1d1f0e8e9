"""Token counts as OpenAI's objects carry them."""

from __future__ import annotations

from msgspec import Struct

from protocol.answers import Usage


class PromptTokensDetails(Struct):
    """`cached_tokens` of the prompt were not computed anew."""

    cached_tokens: int


class CompletionTokensDetails(Struct):
    """`reasoning_tokens` of the answer were reasoning and its tags."""

    reasoning_tokens: int


class UsageBody(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails

    @classmethod
    def of(cls, usage: Usage) -> UsageBody:
        return cls(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens + usage.completion_tokens,
            PromptTokensDetails(usage.cached_tokens),
            CompletionTokensDetails(usage.reasoning_tokens),
        )
