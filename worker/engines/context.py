"""How long a prompt and its answer may be, which follows memory, and what is said beyond it."""

from __future__ import annotations

from typing import NamedTuple

from protocol.answers import RequestFailed, RequestField
from protocol.memory import Bound
from worker.engines.room import Room
from worker.engines.sequence import Sequence
from worker.system.errors import PromptError


class Context(NamedTuple):
    """How many tokens prompt and answer may have together, and a sentence that says why."""

    tokens: int
    note: str = ""


class ContextInForce:
    """Follows what memory there can be. The engine thread writes it, tokenizers read it."""

    def __init__(self, own_tokens: int) -> None:
        """`own_tokens` is the least of what was configured and what the model can."""
        self._own_tokens = own_tokens
        self._reason = ""
        self.now = Context(own_tokens)

    def take(self, bound: Bound | None) -> None:
        self._reason = "" if bound is None else bound.reason
        if bound is None or bound.tokens is None or bound.tokens >= self._own_tokens:
            self.now = Context(self._own_tokens)
        else:
            self.now = self._cut(bound.tokens)

    def hopeless(self, sequence: Sequence, room: Room) -> RequestFailed:
        """For one that waits for more memory than can be had any more."""
        context = self._cut(room.longest_tokens(self.now.tokens))
        if not context.tokens:
            return self._no_room(room).told(sequence.request_id)
        why = f": it has {len(sequence.token_ids)}"
        return too_long(context, why, "Shorten the prompt.", "prompt").told(sequence.request_id)

    def _no_room(self, room: Room) -> PromptError:
        least_mb = -(-room.least_bytes // 1_000_000)
        return PromptError(
            "insufficient_memory",
            f"The model is loaded, but not even the shortest request can run: with one it needs "
            f"{least_mb:,} MB. {self._reason} Raise memory.budget, unload what is pinned, or take "
            "a smaller model.",
        )

    def _cut(self, tokens: int) -> Context:
        return Context(tokens, f" {self._reason} The model itself could hold {self._own_tokens}.")


def too_long(context: Context, why: str, advice: str, field: RequestField) -> PromptError:
    # Clients tell this error from others by its words: LiteLLM by the first, which are OpenAI's,
    # LangChain by "prompt is too long".
    return PromptError(
        "context_length_exceeded",
        f"This model's maximum context length is {context.tokens} tokens. However, the prompt is "
        f"too long{why}.{context.note} {advice}",
        field,
    )
