"""The places of a prompt up to which later prompts may equal it, as far as its messages tell."""

from __future__ import annotations

from protocol.requests import ChatPrompt, Generate
from worker.prompt_cache.path import BLOCK_TOKENS
from worker.prompt_cache.snapshots import spread
from worker.system.errors import PromptError
from worker.template.chat_template import ChatTemplate


def find_boundaries(generate: Generate, prompt_ids: list[int], template: ChatTemplate) -> list[int]:
    """The places, in tokens: the end of the system prompt, the end of the part that the
    conversation's next turn repeats, and before that the beginnings of some messages. The repeated
    part may lack the tokens that ask for an answer.
    """
    if not isinstance(generate.prompt, ChatPrompt) or generate.prompt.pictures:
        # A picture has more tokens in the prompt than the template writes for it.
        return [len(prompt_ids)]
    messages = generate.prompt.messages
    beginnings = [messages]
    if messages and messages[0].role in ("system", "developer"):
        beginnings.append(messages[:1])
    found = []
    for each in beginnings:
        try:
            alike = template.tokens(generate.prompt, generate.tools, each, asking=False)
        except PromptError:
            continue  # Many templates need a message of the user.
        found.append(_common(alike, prompt_ids))
    found = found or [len(prompt_ids)]
    depths = {at // BLOCK_TOKENS for at in template.message_starts(prompt_ids)}
    chosen = spread(depths, max(found) // BLOCK_TOKENS)
    return [*found, *(each * BLOCK_TOKENS for each in chosen)]


def _common(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
