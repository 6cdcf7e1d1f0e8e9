"""How far a request has come, so that another worker can go on with it, and the vectors of a
request for embeddings.
"""

from __future__ import annotations

from array import array
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from protocol.answers import Embedded, Guesses
from protocol.message_base import BYTES_PER_TOKEN, pack, unpack
from protocol.requests import ChatPrompt, Embed, Generate, Prompt, TextPrompt, TokenPrompt

# A request is to blame if another worker dies within so many tokens after the first death.
SUSPECT_TOKENS: Final = 32


# No token, with all its alternatives, has so many bytes of text. So many bytes are allowed for
# anything else.
_MOST_PER_TOKEN: Final = 4096
_MOST_BESIDE: Final = 1 << 16


class Passage(Struct, frozen=True, tag="passage", tag_field="type"):
    """A request that goes to the server of a command as it came, once it may run. Its text is the
    mark of the server's processes, "@", and the address of `Ready`. It runs until
    `Traffic.end_passage` ends it.
    """

    request_id: str
    priority: int = 0


# A request's task, for a worker or for the server of a command.
Task: TypeAlias = Generate | Embed | Passage


class ModelChangedError(Exception):
    """The delivered tokens come from other weights, another tokenizer or another template than the
    next tokens would.
    """


class ProgressState(Struct, frozen=True):
    """The progress of a request, as the next gateway takes it over. Token ids are packed."""

    delivered: bytes
    rendered: bytes | None
    parts: bytes
    fingerprint: str | None
    attempts: int
    death_at: int | None
    guesses: Guesses = Guesses()
    cold: bool = False


class RequestProgress:
    """The progress of one request: its rendered prompt, its delivered tokens, the guesses that were
    checked for them, and the deaths of workers on the way.

    `delivered` holds token ids. `fingerprint` is of the model to which the request was last sent.
    Each time that the request is sent, the message has a new id. So late output for an earlier
    attempt can't be taken for output of the present attempt.
    """

    def __init__(self, task: Task) -> None:
        self.delivered = array("I")
        self.guesses = Guesses()
        # The size of the answer's parts so far, in characters and bytes.
        self.answer_size = 0
        self._task = task
        self._rendered: TokenPrompt | None = None
        self._parts = bytearray()
        self.fingerprint: str | None = None
        # Whether the request is sent to be computed without cached blocks.
        self.cold = False
        self._attempts = 0
        self._death_at: int | None = None

    @property
    def state(self) -> ProgressState:
        return ProgressState(
            delivered=pack(self.delivered),
            rendered=None if self._rendered is None else self._rendered.token_ids,
            parts=bytes(self._parts),
            fingerprint=self.fingerprint,
            attempts=self._attempts,
            death_at=self._death_at,
            guesses=self.guesses,
            cold=self.cold,
        )

    def restore(self, state: ProgressState) -> None:
        """Go on from the state of an earlier gateway."""
        self.delivered.extend(unpack(state.delivered))
        self._rendered = None if state.rendered is None else TokenPrompt(state.rendered)
        self._parts[:] = state.parts
        self.fingerprint = state.fingerprint
        self._attempts = state.attempts
        self._death_at = state.death_at
        self.guesses = state.guesses
        self.cold = state.cold

    @property
    def wire_id(self) -> str:
        """The request's id in its last message to a worker."""
        return f"{self._task.request_id}.{self._attempts}"

    @property
    def begun(self) -> bool:
        """Whether the request was sent."""
        return self._attempts > 0

    @property
    def resumed(self) -> bool:
        """Whether the request was sent more than once."""
        return self._attempts > 1

    @property
    def rendered(self) -> bool:
        """Whether the token ids of the whole prompt are known, or aren't needed."""
        if self._rendered is not None or not isinstance(self._task, Generate):
            return True
        if self._task.counts:
            return True
        return isinstance(self._task.prompt, TokenPrompt)

    @property
    def prompt_ids(self) -> bytes:
        """The packed token ids of the prompt; empty: they aren't known yet."""
        prompt = self._rendered
        if prompt is None and isinstance(self._task, Generate):
            prompt = self._task.prompt if isinstance(self._task.prompt, TokenPrompt) else None
        return b"" if prompt is None else prompt.token_ids

    @property
    def prompt_tokens(self) -> int:
        """The number of the prompt's tokens; 0: it isn't known yet."""
        return len(self.prompt_ids) // BYTES_PER_TOKEN

    @property
    def is_too_long(self) -> bool:
        """Whether the answer's text is longer than so many tokens can make it. Without this bound a
        faulty worker's text would grow for ever.
        """
        tokens = self.prompt_tokens + len(self.delivered)
        return self.answer_size > tokens * _MOST_PER_TOKEN + _MOST_BESIDE

    @property
    def suspect(self) -> bool:
        """Whether a worker died while the request ran, and the request has had fewer than
        `SUSPECT_TOKENS` tokens since.
        """
        return self._death_at is not None and len(self.delivered) - self._death_at < SUSPECT_TOKENS

    def next_message(
        self, fingerprint: str, priority: int = 0, sharer: str = "", share: int = 1
    ) -> Task:
        """Make the next message, for a worker whose model has this fingerprint. `sharer` is the
        name for workers of the one who shares the model.

        Raises:
            ModelChangedError: the delivered tokens came from another model.
        """
        if fingerprint != self.fingerprint:
            if self.delivered:
                raise ModelChangedError
            self.fingerprint = fingerprint
            self._rendered = None
        self._attempts += 1
        self._parts.clear()
        if isinstance(self._task, Passage):
            return msgspec.structs.replace(self._task, request_id=self.wire_id, priority=priority)
        terms = {"request_id": self.wire_id, "priority": priority, "sharer": sharer, "share": share}
        if isinstance(self._task, Embed):
            return msgspec.structs.replace(self._task, **terms)
        prompt: Prompt = self._rendered or self._task.prompt
        if isinstance(self._task.prompt, ChatPrompt) and self._task.prompt.pictures:
            # The tokens alone would not do: the worker makes them together with the arrays of the
            # pictures.
            prompt = self._task.prompt
        return msgspec.structs.replace(
            self._task, prompt=prompt, delivered=pack(self.delivered), cold=self.cold, **terms
        )

    def render(self, token_ids: bytes, *, last: bool) -> int:
        """Take in a part of the rendered prompt. Returns the number of its tokens so far."""
        self._parts += token_ids
        if last:
            self._rendered = TokenPrompt(bytes(self._parts))
        return len(self._parts) // BYTES_PER_TOKEN

    def record_death(self) -> bool:
        """Record that a worker died meanwhile. Returns whether the request is to blame."""
        to_blame = self.suspect
        self._death_at = len(self.delivered)
        return to_blame


BYTES_PER_NUMBER: Final = 4
# An estimate for English, with present vocabularies.
_CHARACTERS_PER_TOKEN: Final = 4
# No model has longer vectors.
_MOST_DIMENSIONS: Final = 1 << 16


class ImplausibleError(Exception):
    """A worker's vectors can't be the ones that were asked for; the message says why."""


class Vectors:
    """The vectors of one request. `data` holds `dimensions` numbers for each input, in the order of
    the inputs, packed as the worker sent them. The inputs had so many `tokens`.
    """

    def __init__(self, inputs: int) -> None:
        self.data = bytearray()
        self.dimensions = 0
        self.tokens = 0
        self._inputs = inputs

    def clear(self) -> None:
        """Drop all vectors, as a worker begins with the request, or begins anew."""
        self.data.clear()
        self.dimensions = self.tokens = 0

    def add(self, part: Embedded) -> None:
        """Add a part of the vectors. Raises: ImplausibleError."""
        if not 0 < part.dimensions <= _MOST_DIMENSIONS or part.tokens < 0:
            raise ImplausibleError(f"it sent vectors of {part.dimensions} numbers")
        if self.data and part.dimensions != self.dimensions:
            raise ImplausibleError("it sent vectors of several lengths for one request")
        self.dimensions = part.dimensions
        self.data += part.vectors
        self.tokens += part.tokens
        whole = self._inputs * part.dimensions * BYTES_PER_NUMBER
        if len(self.data) > whole or (part.last and len(self.data) < whole):
            raise ImplausibleError(
                f"it sent {len(self.data)} bytes of vectors for one request, of {whole}"
            )

    def __getitem__(self, index: int) -> bytes:
        """The vector of one input."""
        size = self.dimensions * BYTES_PER_NUMBER
        return bytes(self.data[index * size : (index + 1) * size])


def likely_tokens(task: Task) -> int:
    """About how many tokens the prompt has, or the inputs of an `Embed`: the worker tells the exact
    number. A request that is passed on counts as one.
    """
    match task:
        case Embed(inputs=inputs, query=query):
            return sum(_tokens_of(text, len(query or "")) for text in inputs)
        case Generate(prompt=ChatPrompt(messages), tools=tools):
            characters = sum(len(message.content) for message in messages)
            characters += 0 if tools is None else len(tools.definitions)
            return 1 + characters // _CHARACTERS_PER_TOKEN
        case Generate(prompt=(TextPrompt() | TokenPrompt()) as prompt):
            return _tokens_of(prompt)
        case _:
            return 1


def _tokens_of(prompt: TextPrompt | TokenPrompt, beside: int = 0) -> int:
    if isinstance(prompt, TokenPrompt):
        return len(prompt.token_ids) // BYTES_PER_TOKEN
    return 1 + (len(prompt.text) + beside) // _CHARACTERS_PER_TOKEN
