"""The messages between the gateway and one worker, the version that both must speak, and the
largest frames.

The worker says `Hello`, and the gateway says `Load`. `LoadProgress` follows until `Ready` or
`LoadFailed`. Then the worker answers every `Generate` by `Rendered` and by deltas in `Output`, up
to a delta with a finish reason, and every `Embed` by one `Embedded` or several. `RequestFailed`
may take the place of either answer, and after `OutputInvalid` the worker may have dropped the
request. `Costs` says how long they took. `Heartbeat` flows all the
while. `Drain` or `Stop` ends the conversation.

A worker that guards the server of a command gets `RunCommand` in place of `Load`, and no requests.

A gateway that is replaced hands its workers over: it says `Move`, and `Moved` is the worker's last
message on this channel. The worker holds back further messages until the next gateway says `Settle`
on another channel, or the old gateway says `Stay`. So no message is lost, and none is sent twice.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar

import msgspec

from protocol.answers import Costs, Embedded, Output, OutputInvalid, Rendered, RequestFailed
from protocol.life import (
    CacheProven,
    CacheQuarantined,
    ClearPromptCache,
    Drain,
    Heartbeat,
    Hello,
    Limit,
    Load,
    LoadFailed,
    LoadProgress,
    Move,
    Moved,
    Need,
    PromptCacheCleared,
    RankLost,
    Ready,
    RunCommand,
    Settle,
    Stay,
    Stop,
)
from protocol.message_base import Message, digest
from protocol.requests import Cancel, Embed, Generate

GatewayMessage: TypeAlias = (
    Load
    | RunCommand
    | Generate
    | Embed
    | Cancel
    | Limit
    | ClearPromptCache
    | Move
    | Settle
    | Stay
    | Drain
    | Stop
)

WorkerMessage: TypeAlias = (
    Hello
    | LoadProgress
    | Ready
    | LoadFailed
    | Rendered
    | Output
    | Embedded
    | RequestFailed
    | OutputInvalid
    | Costs
    | Heartbeat
    | Need
    | PromptCacheCleared
    | CacheQuarantined
    | CacheProven
    | Moved
    | RankLost
)

# To be raised when the meaning of a message changes, although its fields are the same.
_MEANING: Final = 6

# If an installation changes while a gateway runs, the gateway's new workers speak another version.
PROTOCOL_VERSION: Final = f"{_MEANING}-{digest(GatewayMessage | WorkerMessage)}"


# A worker's frame holds some steps of text. A gateway's frame holds a whole prompt.
MAX_WORKER_FRAME_BYTES: Final = 1 << 20
MAX_GATEWAY_FRAME_BYTES: Final = 1 << 26

# Errors of msgspec quote the peer's values, which may be as long as the frame.
_LONGEST_DETAIL: Final = 160

T = TypeVar("T")


class ProtocolError(Exception):
    """The peer sent a frame that is no message of this protocol version."""


class VersionError(ProtocolError):
    """The peer says in its hello that it speaks another version."""


_encoder = msgspec.msgpack.Encoder()
_worker_decoder: msgspec.msgpack.Decoder[WorkerMessage] = msgspec.msgpack.Decoder(WorkerMessage)
_gateway_decoder: msgspec.msgpack.Decoder[GatewayMessage] = msgspec.msgpack.Decoder(GatewayMessage)
_anything_decoder = msgspec.msgpack.Decoder()


def encode(message: Message) -> bytes:
    """One message as one frame.

    Raises:
        ProtocolError: the frame is larger than any frame that a worker takes.
    """
    frame = _encoder.encode(message)
    _check_size(frame, MAX_GATEWAY_FRAME_BYTES)
    return frame


def decode_from_worker(frame: bytes) -> WorkerMessage:
    """Read a frame that a worker sent.

    Raises:
        ProtocolError: the frame is too large, cut off, malformed, unknown or of another version.
    """
    message = _decode(_worker_decoder, frame, MAX_WORKER_FRAME_BYTES)
    if isinstance(message, Hello) and message.protocol_version != PROTOCOL_VERSION:
        raise _version_mismatch(message.protocol_version)
    return message


def decode_from_gateway(frame: bytes) -> GatewayMessage:
    """Read a frame that the gateway sent; errors as in `decode_from_worker`."""
    return _decode(_gateway_decoder, frame, MAX_GATEWAY_FRAME_BYTES)


def _decode(decoder: msgspec.msgpack.Decoder[T], frame: bytes, limit_bytes: int) -> T:
    _check_size(frame, limit_bytes)
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _described(frame, error) from error


def _check_size(frame: bytes, limit_bytes: int) -> None:
    if len(frame) > limit_bytes:
        raise ProtocolError(f"a frame of {len(frame)} bytes, over the limit of {limit_bytes}")


def _described(frame: bytes, error: Exception) -> ProtocolError:
    """The error of an unreadable frame. If the frame is a hello of another version, which may have
    other fields, the error names that version.
    """
    try:
        fields = _anything_decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, ValueError):
        fields = None
    if isinstance(fields, dict) and fields.get("type") == "hello":
        version = fields.get("protocol_version")
        if version != PROTOCOL_VERSION:
            return _version_mismatch(version)
    return ProtocolError(f"an unreadable frame of {len(frame)} bytes: {error!s:.{_LONGEST_DETAIL}}")


def _version_mismatch(version: object) -> VersionError:
    return VersionError(
        f"it speaks protocol version {version!s:.20}, this side speaks {PROTOCOL_VERSION}: "
        "both must come from the same installation of Bulkhead"
    )
