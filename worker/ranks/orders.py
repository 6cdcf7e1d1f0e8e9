"""What rank 0 tells its followers, and what they answer.

Nothing is decided twice. Rank 0 chooses what joins, what leaves, how long a chunk is, which tokens
come and what the prompt cache keeps, and tells each of these before it does it; a follower does the
same with its part of the model. So all ranks compute the same steps on caches of the same shapes,
and meet in the same order of collective operations, without which they would wait for ever.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from protocol.life import Load

# Where caches are in a batch of mlx-lm's: those of prompts, those of answers, or of a row that has
# just ended.
Stage: TypeAlias = Literal["prompt", "answer", "ended"]


class _Order(Struct, frozen=True, tag_field="type"):
    pass


class Open(_Order, frozen=True, tag="open"):
    """A batch of at most so many rows, `prompts` of them in prefill."""

    batch: int
    rows: int
    prompts: int


class Close(_Order, frozen=True, tag="close"):
    batch: int


class Insert(_Order, frozen=True, tag="insert"):
    """A row: the segments of its prompt that are to be computed, and the caches that were `joined`
    of what is kept of it.
    """

    batch: int
    segments: list[list[int]]
    max_tokens: int
    stop_token_ids: list[int]
    joined: int | None


class Remove(_Order, frozen=True, tag="remove"):
    batch: int
    rows: list[int]


class Step(_Order, frozen=True, tag="step"):
    """With so many tokens of each prompt. `watched`: the prompts' logits are wanted."""

    batch: int
    chunk: int
    watched: bool


class Place(Struct, frozen=True):
    """Caches of a row: by its place there, or by its number if it has ended."""

    batch: int
    stage: Stage
    row: int


class Cut(_Order, frozen=True, tag="cut"):
    """Keep blocks `first` up to `last` of a row, numbered from `number` on."""

    place: Place
    first: int
    last: int
    number: int


class Snapshot(_Order, frozen=True, tag="snapshot"):
    """Keep what can't be cut of a row."""

    place: Place
    number: int


class Join(_Order, frozen=True, tag="join"):
    """Make caches of what is kept, for the row that comes next."""

    blocks: list[int]
    snapshot: int | None
    number: int


class Forget(_Order, frozen=True, tag="forget"):
    """Blocks and snapshots that nobody keeps any more."""

    numbers: list[int]


class Take(_Order, frozen=True, tag="take"):
    """Another limit of each process, of which it takes so much beside MLX."""

    limit_bytes: int
    beside_bytes: int


class Trim(_Order, frozen=True, tag="trim"):
    """Give back the buffers that MLX keeps for reuse."""


class Finish(_Order, frozen=True, tag="finish"):
    """Release the model and end."""


class Begin(_Order, frozen=True, tag="begin"):
    """The first one: what is to be loaded, with its `ranks`."""

    load: Load


Order: TypeAlias = (
    Begin
    | Open
    | Close
    | Insert
    | Remove
    | Step
    | Cut
    | Snapshot
    | Join
    | Forget
    | Take
    | Trim
    | Finish
)


class Here(_Order, frozen=True, tag="here"):
    """A follower is there; `versions` are of what has to agree."""

    versions: dict[str, str]


class HasLoaded(_Order, frozen=True, tag="has-loaded"):
    pass


class HasFailed(_Order, frozen=True, tag="has-failed"):
    reason: str
    permanent: bool


Answer: TypeAlias = Here | HasLoaded | HasFailed

_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()
_orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(each: Order | Answer) -> bytes:
    return _encoder.encode(each)


def decode_order(frame: bytes) -> Order:
    """Raises: msgspec.DecodeError: it is of another version."""
    return _orders.decode(frame)


def decode_answer(frame: bytes) -> Answer:
    """Raises: msgspec.DecodeError: it is of another version."""
    return _answers.decode(frame)
