"""The messages between a gateway and `bulkhead remote`, which runs on another machine under ssh.

Both directions are msgpack with a length of four bytes before each message. The remote program
sends `PREAMBLE` first: a shell's start files may print before it. A request has a number above 0,
and its answer has the same number. Messages with the number 0 need no answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from gateway.system.memory_reading import Footprint, Pressure
from gateway.system.processes import ProcessIdentity
from gateway.workers.host import RankEnd, RankOrder

# The version of these messages.
API: Final = 1
PREAMBLE: Final = b"\n\0bulkhead-remote\0"

_LENGTH_BYTES: Final = 4
_LONGEST_FRAME_BYTES: Final = 8 << 20
# The longest text that a shell may print before the preamble.
_MOST_NOISE_BYTES: Final = 1 << 20


class _ForRemote(Struct, frozen=True, tag_field="type"):
    pass


class _ForGateway(Struct, frozen=True, tag_field="type"):
    pass


class Pong(_ForRemote, frozen=True, tag="pong"):
    number: int


class ReadHost(_ForRemote, frozen=True, tag="read-host"):
    """`budget` is the host's key in the configuration: "auto", bytes, a size or a share."""

    budget: int | str


class FindPorts(_ForRemote, frozen=True, tag="find-ports"):
    count: Annotated[int, Meta(ge=1, le=64)]


class FindProcesses(_ForRemote, frozen=True, tag="find-processes"):
    """Ask which of these processes still run."""

    processes: tuple[ProcessIdentity, ...]


class StartRank(_ForRemote, frozen=True, tag="start-rank"):
    order: RankOrder


class ReadFootprint(_ForRemote, frozen=True, tag="read-footprint"):
    pass


class SignalRank(_ForRemote, frozen=True, tag="signal-rank"):
    signal: Literal["dump", "end", "kill"]


ForRemote: TypeAlias = (
    Pong | ReadHost | FindPorts | FindProcesses | StartRank | ReadFootprint | SignalRank
)


class RemoteHello(_ForGateway, frozen=True, tag="hello"):
    """The first message. `version` is Bulkhead's, and `versions` must be the same on all hosts of a
    model. `address` is the host's IP address at which sshd has taken the connection.
    """

    api: int
    version: str
    versions: dict[str, str] = {}
    address: str | None = None


class Ping(_ForGateway, frozen=True, tag="ping"):
    number: int


class HostReading(_ForGateway, frozen=True, tag="host"):
    """The memory of a host, in bytes. All ranks of this gateway may hold `budget_bytes` there."""

    budget_bytes: int
    total_bytes: int
    available_bytes: int
    pressure: Pressure | None


class FreePorts(_ForGateway, frozen=True, tag="ports"):
    ports: tuple[int, ...]


class RunningProcesses(_ForGateway, frozen=True, tag="processes"):
    processes: tuple[ProcessIdentity, ...]


class RankStarted(_ForGateway, frozen=True, tag="started"):
    process: ProcessIdentity


class FootprintReading(_ForGateway, frozen=True, tag="footprint"):
    footprint: Footprint


class OrderDone(_ForGateway, frozen=True, tag="done"):
    """The answer to a request that asks for nothing."""


class StartRefused(_ForGateway, frozen=True, tag="refused"):
    reason: str


class RankLines(_ForGateway, frozen=True, tag="lines"):
    """Lines that the rank has printed. `lost` lines before them were dropped: the rank printed
    faster than the link could carry.
    """

    lines: tuple[str, ...]
    lost: int = 0


class RankEnded(_ForGateway, frozen=True, tag="ended"):
    end: RankEnd


ForGateway: TypeAlias = (
    RemoteHello
    | Ping
    | HostReading
    | FreePorts
    | RunningProcesses
    | RankStarted
    | FootprintReading
    | OrderDone
    | StartRefused
    | RankLines
    | RankEnded
)


class NumberedForRemote(Struct, frozen=True, array_like=True):
    number: int
    message: ForRemote


class NumberedForGateway(Struct, frozen=True, array_like=True):
    number: int
    message: ForGateway


_encoder: Final = msgspec.msgpack.Encoder()
_for_remote: Final = msgspec.msgpack.Decoder(NumberedForRemote)
_for_gateway: Final = msgspec.msgpack.Decoder(NumberedForGateway)


def encode(message: NumberedForRemote | NumberedForGateway) -> bytes:
    """The message as a frame, with its length."""
    content = _encoder.encode(message)
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


def decode_for_remote(content: bytes) -> NumberedForRemote:
    """Raises: msgspec.MsgspecError: the message is of another version."""
    return _for_remote.decode(content)


def decode_for_gateway(content: bytes) -> NumberedForGateway:
    """Raises: msgspec.MsgspecError: the message is of another version."""
    return _for_gateway.decode(content)


class FrameError(ValueError):
    """The bytes are no frames."""


class FrameReader:
    """Cuts a stream of bytes into the contents of frames."""

    def __init__(self, *, after_preamble: bool) -> None:
        """With `after_preamble` all bytes up to the preamble are skipped."""
        self._buffer = bytearray()
        self._noisy = after_preamble

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the contents of all frames that are complete now. Raises: FrameError."""
        self._buffer += data
        if self._noisy:
            _, preamble, rest = self._buffer.partition(PREAMBLE)
            if not preamble:
                if len(self._buffer) > _MOST_NOISE_BYTES:
                    raise FrameError("its shell prints without end")
                return
            self._noisy = False
            self._buffer = rest
        while len(self._buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
            if end > _LONGEST_FRAME_BYTES:
                raise FrameError("it sent something else than messages")
            if len(self._buffer) < end:
                return
            content = bytes(self._buffer[_LENGTH_BYTES:end])
            del self._buffer[:end]
            yield content
