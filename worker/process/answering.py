"""Makes messages to the gateway from the tokens of requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from protocol.answers import (
    TOKENS_PER_RENDERED,
    AnswerPart,
    Delta,
    Guesses,
    Output,
    Rendered,
    Text,
    Usage,
    merged,
)
from protocol.message_base import pack
from worker.prompt_cache.path import BLOCK_TOKENS

if TYPE_CHECKING:
    from worker.engines.sequence import Token
    from worker.runtime.prompts import PreparedRequest
    from worker.sampling.scores import LogprobWriter
    from worker.text.repetition import RepetitionWatch
    from worker.text.stream import AnswerStream


class Answering:
    """The answer to one request, as the main thread makes it from tokens. It is created when the
    request comes. `start` is called once the prompt is tokenized.
    """

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._cached_tokens: int | None = None
        self._stored_tokens = 0
        self._answer: AnswerStream | None = None
        self._logprobs: LogprobWriter | None = None
        self._repetition: RepetitionWatch | None = None
        # Text to send before the text of the first token.
        self._echo = ""
        self._prompt_only = False
        # Keywords of the client's schema that aren't enforced. The first delta names them.
        self._unenforced: tuple[str, ...] = ()

    def start(self, prepared: PreparedRequest) -> None:
        self._prompt_tokens = len(prepared.prompt_ids)
        path = prepared.sequence.path
        self._stored_tokens = 0 if path is None else path.stored * BLOCK_TOKENS
        self._completion_tokens = prepared.delivered
        self._answer = prepared.answer
        self._logprobs = prepared.logprobs
        self._repetition = prepared.repetition
        self._echo = prepared.echo
        self._prompt_only = prepared.prompt_only
        constrained = prepared.sequence.constrained
        self._unenforced = () if constrained is None else constrained.unenforced

    def counted(self) -> Delta:
        """The last delta of a request without an answer: echo and number of prompt tokens."""
        parts = (Text(self._echo),) if self._echo else ()
        usage = Usage(self._prompt_tokens, 0, self._cached_tokens or 0)
        return Delta(self._request_id, (), parts, "length", usage)

    def prompt_deltas(self, token: Token) -> Iterator[Delta]:
        """The log probabilities of the prompt, if `token` has them. Several deltas have a part
        each, since all together may be too long for one message.
        """
        if self._logprobs is not None and token.prompt_scores is not None:
            for part in self._logprobs.prompt_parts(token.prompt_scores):
                yield Delta(self._request_id, (), (part,))

    def delta(self, token: Token) -> Delta | None:
        """The delta of a token; None: `start` was not called yet. The last delta has a finish
        reason. The engine doesn't know this reason yet if the text ends the answer, as a stop
        sequence does.
        """
        answer, logprobs, repetition = self._answer, self._logprobs, self._repetition
        if answer is None or logprobs is None or repetition is None:
            return None
        if self._cached_tokens is None:
            # Only the number of the first token counts. A sequence that was put aside later finds
            # blocks in the prompt cache that it has computed itself.
            self._cached_tokens = min(token.cached_tokens, self._prompt_tokens)
        if self._prompt_only:
            return self.counted()
        self._completion_tokens += 1
        finish_reason = token.finish_reason
        added = [] if finish_reason == "stop" else answer.add(token.token_id)
        if answer.stopped:
            finish_reason = "stop"
        cut = repetition.add(token.token_id) and finish_reason is None
        if cut:
            finish_reason = "stop"
        parts: list[AnswerPart] = [Text(self._echo)] if self._echo else []
        self._echo = ""
        guesses = Guesses(int(token.guessed), token.rejected)
        if token.score is not None and token.finish_reason != "stop":
            # The token that ends an answer has no text, so its score is not sent.
            parts.append(logprobs.part(token.token_id, token.score))
        parts += added
        if finish_reason is None:
            unenforced, self._unenforced = self._unenforced, ()
            return Delta(
                self._request_id,
                (token.token_id,),
                tuple(parts),
                unenforced=unenforced,
                guesses=guesses,
            )
        usage = Usage(
            self._prompt_tokens,
            self._completion_tokens,
            self._cached_tokens,
            answer.reasoning_tokens,
            stored_tokens=min(self._stored_tokens, self._prompt_tokens),
        )
        complete = finish_reason == "stop" and not cut
        parts = merged(parts + answer.finish(complete=complete))
        if complete and answer.ended_with_calls:
            finish_reason = "tool_calls"
        return Delta(
            self._request_id,
            (token.token_id,),
            tuple(parts),
            finish_reason,
            usage,
            answer.stop_sequence,
            self._unenforced,
            guesses,
            # An answer that ended by itself has not looped.
            not complete and repetition.repeats,
        )


def rendered(request_id: str, prompt_ids: list[int]) -> Iterator[Rendered]:
    """The tokens of a prompt, in messages. With them the gateway can send the same prompt to
    another worker.
    """
    for begin in range(0, len(prompt_ids), TOKENS_PER_RENDERED):
        end = begin + TOKENS_PER_RENDERED
        yield Rendered(
            request_id=request_id,
            token_ids=pack(prompt_ids[begin:end]),
            last=end >= len(prompt_ids),
        )


# The most tokens in a message. A message may have a megabyte, and a token with log probabilities
# takes a kilobyte.
_MOST_TOKENS: Final = 256


class Outbox:
    """Deltas that haven't been sent yet, grouped by request."""

    def __init__(self) -> None:
        self._step = 0
        self._deltas: dict[str, list[Delta]] = {}
        self._count = 0

    @property
    def full(self) -> bool:
        """Whether one message can have no more deltas than wait."""
        return self._count >= _MOST_TOKENS

    def add(self, step: int, delta: Delta) -> None:
        self._step = step
        self._deltas.setdefault(delta.request_id, []).append(delta)
        self._count += 1

    def collect(self) -> Output | None:
        """Take all deltas, joined to one for each request; None: there are none."""
        if not self._deltas:
            return None
        output = Output(step=self._step, deltas=tuple(map(_together, self._deltas.values())))
        self._deltas, self._count = {}, 0
        return output


def _together(deltas: list[Delta]) -> Delta:
    last = deltas[-1]
    if len(deltas) == 1:
        return last
    return Delta(
        last.request_id,
        tuple(token_id for delta in deltas for token_id in delta.token_ids),
        tuple(merged(part for delta in deltas for part in delta.parts)),
        last.finish_reason,
        last.usage,
        last.stop_sequence,
        next((delta.unenforced for delta in deltas if delta.unenforced), ()),
        sum((delta.guesses for delta in deltas), Guesses()),
        last.repeats,
    )
