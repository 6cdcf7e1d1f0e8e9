"""How far a request has come, so that another worker can go on with it; and its vectors."""

from __future__ import annotations

from array import array
from typing import Final

import msgspec
from msgspec import Struct

from protocol.answers import Embedded
from protocol.message import BYTES_PER_TOKEN, pack, unpack
from protocol.requests import ChatPrompt, Embed, Generate, Prompt, Task, TextPrompt, TokenPrompt

# If a worker dies again within so many tokens, the request is to blame.
SUSPECT_TOKENS: Final = 32


# Bytes of text that no token reaches with all its alternatives, and bytes for anything beside.
_MOST_PER_TOKEN: Final = 4096
_MOST_BESIDE: Final = 1 << 16


class ModelChangedError(Exception):
    """The delivered tokens come from other weights, another tokenizer or another template."""


class ProgressState(Struct, frozen=True):
    """The progress of a request, for another gateway to go on from. Token ids are packed."""

    delivered: bytes
    rendered: bytes | None
    parts: bytes
    fingerprint: str | None
    attempts: int
    death_at: int | None


class RequestProgress:
    """The rendered prompt, the delivered tokens, and the deaths of workers on the way.

    `delivered` holds token ids, and `fingerprint` is that of the model that it was last sent to. A
    message names the request by an id of its own each time that it is sent, so that late output for
    an earlier attempt can't be taken for the present one's.
    """

    def __init__(self, task: Task) -> None:
        self.delivered = array("I")
        # The size of its parts so far, in characters and bytes.
        self.said = 0
        self._task = task
        self._rendered: TokenPrompt | None = None
        self._parts = bytearray()
        self.fingerprint: str | None = None
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
        )

    def restore(self, state: ProgressState) -> None:
        """Go on from the state of an earlier gateway."""
        self.delivered.extend(unpack(state.delivered))
        self._rendered = None if state.rendered is None else TokenPrompt(state.rendered)
        self._parts[:] = state.parts
        self.fingerprint = state.fingerprint
        self._attempts = state.attempts
        self._death_at = state.death_at

    @property
    def wire_id(self) -> str:
        """The id that the last message gave it."""
        return f"{self._task.request_id}.{self._attempts}"

    @property
    def begun(self) -> bool:
        """It was sent."""
        return self._attempts > 0

    @property
    def resumed(self) -> bool:
        """It was sent more than once."""
        return self._attempts > 1

    @property
    def rendered(self) -> bool:
        """The token ids of the whole prompt are known, or aren't needed."""
        if self._rendered is not None or isinstance(self._task, Embed) or self._task.counts:
            return True
        return isinstance(self._task.prompt, TokenPrompt)

    @property
    def prompt_tokens(self) -> int:
        """0: they aren't known yet."""
        prompt = self._rendered
        if prompt is None and isinstance(self._task, Generate):
            prompt = self._task.prompt if isinstance(self._task.prompt, TokenPrompt) else None
        return 0 if prompt is None else len(prompt.token_ids) // BYTES_PER_TOKEN

    @property
    def says_too_much(self) -> bool:
        """Its text is longer than so many tokens can have; without this bound it would grow."""
        tokens = self.prompt_tokens + len(self.delivered)
        return self.said > tokens * _MOST_PER_TOKEN + _MOST_BESIDE

    @property
    def suspect(self) -> bool:
        """A worker died while it ran, and it hasn't come far enough since to be cleared."""
        return self._death_at is not None and len(self.delivered) - self._death_at < SUSPECT_TOKENS

    def next_message(self, fingerprint: str, priority: int = 0) -> Task:
        """The message for a worker whose model has this fingerprint.

        Raises:
            ModelChangedError: part of the answer came from another model.
        """
        if fingerprint != self.fingerprint:
            if self.delivered:
                raise ModelChangedError
            self.fingerprint = fingerprint
            self._rendered = None
        self._attempts += 1
        self._parts.clear()
        if isinstance(self._task, Embed):
            return msgspec.structs.replace(self._task, request_id=self.wire_id, priority=priority)
        prompt: Prompt = self._rendered or self._task.prompt
        if isinstance(self._task.prompt, ChatPrompt) and self._task.prompt.pictures:
            # The worker makes the tokens and the pictures' arrays together.
            prompt = self._task.prompt
        return msgspec.structs.replace(
            self._task,
            request_id=self.wire_id,
            prompt=prompt,
            delivered=pack(self.delivered),
            priority=priority,
        )

    def render(self, token_ids: bytes, *, last: bool) -> int:
        """Take in a part of the rendered prompt; returns how many tokens there are by now."""
        self._parts += token_ids
        if last:
            self._rendered = TokenPrompt(bytes(self._parts))
        return len(self._parts) // BYTES_PER_TOKEN

    def note_death(self) -> bool:
        """A worker died while it ran; True if the request is to blame."""
        guilty = self.suspect
        self._death_at = len(self.delivered)
        return guilty


BYTES_PER_NUMBER: Final = 4
# Of English, with present vocabularies.
_CHARACTERS_PER_TOKEN: Final = 4
# No model has longer vectors.
_MOST_DIMENSIONS: Final = 1 << 16


class ImplausibleError(Exception):
    """These can't be the vectors that were asked for; the message says why."""


class Vectors:
    """`data` has `dimensions` numbers of each input, in their order, packed as the worker sent
    them; their prompts had so many `tokens`.
    """

    def __init__(self, inputs: int) -> None:
        self.data = bytearray()
        self.dimensions = 0
        self.tokens = 0
        self._inputs = inputs

    def begin(self) -> None:
        """A worker begins, or another one begins anew."""
        self.data.clear()
        self.dimensions = self.tokens = 0

    def take(self, part: Embedded) -> None:
        """Raises: ImplausibleError."""
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


def likely_tokens(task: Embed) -> int:
    """Roughly the tokens of its inputs. The worker counts them, and says so with the vectors."""
    query = 0 if task.query is None else len(task.query)
    return sum(
        1 + (len(each.text) + query) // _CHARACTERS_PER_TOKEN
        if isinstance(each, TextPrompt)
        else len(each.token_ids) // BYTES_PER_TOKEN
        for each in task.inputs
    )
