"""One request on its way to a worker, and the slot in which its answer arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from gateway.requests.progress import (
    ProgressState,
    RequestProgress,
    Task,
    Vectors,
    likely_tokens,
)
from gateway.requests.trace import Trace
from gateway.requests.use import Timing
from gateway.system.refusal import Refusal
from protocol.answers import (
    AnswerPart,
    Delta,
    Embedded,
    FinishReason,
    Guesses,
    RequestFailed,
    RequestField,
    Usage,
    merged,
)
from protocol.requests import ChatPrompt, Embed, Generate, SamplingDefaults

# How long a client's connection may be silent before it gets an SSE comment.
REMINDER_S: Final = 5.0


class AnswerPiece(Struct, frozen=True):
    """The parts of an answer that have arrived since the last piece. An idle piece has no parts,
    and only reminds its reader that time passes.
    """

    parts: tuple[AnswerPart, ...]
    finish_reason: FinishReason | None
    usage: Usage | None

    @property
    def idle(self) -> bool:
        return not self.parts and self.finish_reason is None


# Writes a piece in place of the reader's task, as waking the task costs more than writing the
# piece. Returns False if it can't write now; then the task gets the piece.
Shortcut: TypeAlias = Callable[[AnswerPiece], bool]


class Terms(Struct, frozen=True, kw_only=True):
    """The terms that all answers to a client's request have in common.

    `id` is the request's name for its client (empty: the message's id), and `key` is the name of
    its API key. Without keys the client's `address` tells who shares the model; `share` weighs the
    seconds of it that a sharer gets. Without a `priority` the model's priority counts. After the
    request the model is to stay loaded for `keep_alive_s`. `params` has the client's names for
    fields of the message. A `probe` asks whether the model works, and doesn't count as use.
    """

    deadline_s: float
    id: str = ""
    key: str | None = None
    address: str = ""
    share: int = 1
    priority: int | None = None
    keep_alive_s: float | None = None
    params: dict[RequestField, str] = {}
    probe: bool = False

    @property
    def sharer(self) -> str:
        """The name of the one who shares the model with others."""
        return self.key or self.address


class RequestState(Struct, frozen=True, kw_only=True):
    """A request, as the next gateway takes it over. Times are the event loop's, in seconds."""

    task: Task
    terms: Terms
    prompt_counts: bool
    arrived_at: float
    deadline_at: float
    started_at: float | None
    begun_at: float | None
    answered_at: float | None
    timing: Timing
    progress: ProgressState
    vectors: bytes
    dimensions: int
    vector_tokens: int
    unenforced: tuple[str, ...] = ()


class ClientGoneError(Exception):
    """The client has gone."""


class Request:
    """A request, its answer, and its progress, from which another worker can go on.

    The answer has one slot: deltas that arrive before the reader takes them are merged, so a slow
    reader costs only the memory of the parts. Times are the event loop's, in seconds.
    """

    def __init__(
        self, task: Task, terms: Terms, now: float, *, repeats_prompt: bool = False
    ) -> None:
        """With `repeats_prompt` the request asks for one more answer to a prompt. The prompt counts
        only with its first answer.
        """
        self.task = task
        self.terms = terms
        self.prompt_counts = not (terms.probe or repeats_prompt)
        # The model's own sampling options, for those that the request left open. Set when it is
        # sent.
        self.sampling = SamplingDefaults()
        self.arrived_at = now
        self.timing = Timing(now)
        # Only requests that may be asked about have one.
        self.trace: Trace | None = None
        self.deadline_at = now + terms.deadline_s
        self.progress = RequestProgress(task)
        # The answer to an `Embed`. It is whole when the request is over.
        self.vectors = Vectors(len(task.inputs) if isinstance(task, Embed) else 0)
        self._abandoned = False
        self._touched_at = now
        self._parts: list[AnswerPart] = []
        # Why the answer ended; None before its end.
        self.finish_reason: FinishReason | None = None
        # The stop sequence that ended the answer, if one did.
        self.stop_sequence: str | None = None
        # The parts of the request's schemas that aren't enforced.
        self.unenforced: tuple[str, ...] = ()
        # The tokens of the whole answer; None before its end. `cached_tokens` are those that the
        # last worker found in its cache.
        self.usage: Usage | None = None
        self._refusal: Refusal | None = None
        self._idle = False
        self._arrived = asyncio.Event()
        # Set while the reader waits.
        self._shortcut: Shortcut | None = None
        self._started_at: float | None = None
        # When a worker first got the request, and when the first part of the answer arrived.
        self.begun_at: float | None = None
        self.answered_at: float | None = None

    @property
    def id(self) -> str:
        """The request's name for its client. Workers know the request by the id of its message,
        which is unique.
        """
        return self.terms.id or self.task.request_id

    @property
    def state(self) -> RequestState:
        """The state for the next gateway, without the parts that the reader hasn't taken yet."""
        return RequestState(
            task=self.task,
            terms=self.terms,
            prompt_counts=self.prompt_counts,
            arrived_at=self.arrived_at,
            deadline_at=self.deadline_at,
            started_at=self._started_at,
            begun_at=self.begun_at,
            answered_at=self.answered_at,
            timing=self.timing,
            progress=self.progress.state,
            vectors=bytes(self.vectors.data),
            dimensions=self.vectors.dimensions,
            vector_tokens=self.vectors.tokens,
            unenforced=self.unenforced,
        )

    def restore(self, state: RequestState) -> None:
        """Go on from the state of an earlier gateway."""
        self.prompt_counts = state.prompt_counts
        self.deadline_at = state.deadline_at
        self._started_at = state.started_at
        self.begun_at = state.begun_at
        self.answered_at = state.answered_at
        self.timing = state.timing
        self.progress.restore(state.progress)
        self.unenforced = state.unenforced
        self.vectors.data += state.vectors
        self.vectors.dimensions = state.dimensions
        self.vectors.tokens = state.vector_tokens

    @property
    def spent(self) -> Usage | None:
        """The tokens that were computed for the request so far, as far as they are known; None:
        there were none.
        """
        if self.usage is not None:
            return self.usage
        if isinstance(self.task, Embed):
            # A worker doesn't say how far it came with an `Embed`.
            began = self.begun_at is not None and self._refusal is None
            return Usage(likely_tokens(self.task), 0) if began else None
        if not self.progress.begun:
            return None
        tokens = len(self.progress.delivered)
        return Usage(self.progress.prompt_tokens, tokens, guesses=self.progress.guesses)

    @property
    def over(self) -> bool:
        """Whether nothing more will arrive."""
        return self.finish_reason is not None or self._refusal is not None

    def param_of(self, failure: RequestFailed) -> str | None:
        """The client's name for the field or picture that failed."""
        match failure.picture, self.task:
            case int() as number, Generate(prompt=ChatPrompt() as prompt):
                return next(
                    (picture.name for picture in prompt.pictures[number : number + 1]), None
                )
        return None if failure.field is None else self.terms.params.get(failure.field)

    def start(self, now: float) -> None:
        """Note that the request runs from now on: its deadline stands still."""
        self._started_at = now
        self.begun_at = now if self.begun_at is None else self.begun_at
        self.vectors.clear()

    def park(self, now: float) -> None:
        """Note that the request waits again: its deadline goes on."""
        if self._started_at is not None:
            self.deadline_at += now - self._started_at
            self._started_at = None

    def deliver(self, delta: Delta, now: float) -> bool:
        """Take in a part of the answer. Returns whether `tell` has news for the reader."""
        self.progress.delivered.extend(delta.token_ids)
        self.progress.guesses += delta.guesses
        # The first delta from each worker has this list, later deltas have an empty one.
        self.unenforced = delta.unenforced or self.unenforced
        if delta.parts:
            self._parts += delta.parts
            self.progress.answer_size += sum([part.size for part in delta.parts])
        elif delta.finish_reason is None:
            return False
        if self.answered_at is None:
            self.answered_at = now
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_sequence = delta.stop_sequence
            self.usage = delta.usage and _completed(delta.usage, self.progress.guesses)
            if self.trace is not None:
                self.trace.usage = self.usage
        return True

    def tell(self, now: float) -> None:
        """If anything has arrived, write it by the shortcut, or wake the reader."""
        if self._arrived.is_set() or not (self._parts or self.over):
            return
        if self._shortcut is None or self.over:
            self._arrived.set()
        elif self._shortcut(AnswerPiece(tuple(merged(self._parts)), None, None)):
            self._parts = []
            self._touched_at = now
        else:
            self._arrived.set()

    def deliver_vectors(self, part: Embedded) -> None:
        """Take in a part of the vectors. Raises: ImplausibleError."""
        self.vectors.add(part)
        if part.last:
            self.finish_reason = "stop"
            self.usage = Usage(self.vectors.tokens, 0)
            self._arrived.set()

    def refuse(self, refusal: Refusal) -> None:
        """End the request without the rest of its answer. Parts that arrived before are still
        delivered.
        """
        if not self.over:
            self._refusal = refusal
            self._arrived.set()

    def abandon(self) -> None:
        """Stop the reader of the answer, as the client is gone."""
        self._abandoned = True
        self._arrived.set()

    def remind(self, now: float, after_s: float) -> None:
        """Wake the reader with an idle piece if nothing has arrived for a while."""
        if not self._arrived.is_set() and now - self._touched_at >= after_s:
            self._touched_at = now
            self._idle = True
            self._arrived.set()

    async def next_piece(self, shortcut: Shortcut | None = None) -> AnswerPiece:
        """Wait for the next piece of the answer. The last piece has the finish reason. During the
        wait earlier pieces go to `shortcut` instead, as long as that writes them.

        Raises:
            Refusal: the answer ends without its rest.
            ClientGoneError: the request was abandoned.
        """
        self._shortcut = shortcut
        try:
            await self._arrived.wait()
        finally:
            self._shortcut = None
        self._arrived.clear()
        if self._abandoned:
            raise ClientGoneError
        if self._idle and not self._parts and not self.over:
            self._idle = False
            return AnswerPiece((), None, None)
        self._idle = False
        self._touched_at = asyncio.get_running_loop().time()
        parts, self._parts = tuple(merged(self._parts)), []
        if self._refusal is not None:
            if not parts:
                raise self._refusal.anew()
            self._arrived.set()
        return AnswerPiece(parts, self.finish_reason, self.usage)


def _completed(usage: Usage, guesses: Guesses) -> Usage:
    """The usage with the guesses of all workers, and with at most as many cached tokens as the
    prompt has. A worker that resumes a request also finds delivered tokens in its cache; these
    don't count.
    """
    cached_tokens = min(max(usage.cached_tokens, 0), usage.prompt_tokens)
    return msgspec.structs.replace(usage, cached_tokens=cached_tokens, guesses=guesses)
